"""Workers that run a program of any language instead of a job."""
