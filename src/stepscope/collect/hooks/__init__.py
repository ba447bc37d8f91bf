"""One module per source of records. Each has `install(session)`, called once torch is imported."""
