"""The API server: requests, and what is kept current by watches."""
