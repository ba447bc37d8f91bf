"""One module per source. Each has `install(session)`, called once, after torch was imported."""
