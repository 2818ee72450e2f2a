"""The coordinator's own log (`__consumer_offsets`): its records, what they say, who reads them."""
