"""Step times of the job as a whole: long steps, rises, duties, and what recurs."""
