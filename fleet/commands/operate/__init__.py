"""Parts of Fleet started by hand: broker, worker, exporter, history."""
