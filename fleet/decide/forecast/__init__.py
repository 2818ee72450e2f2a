"""What plans will cost, played to the model of the coordinator."""
