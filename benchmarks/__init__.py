"""Speed, side by side with named peers in one process. Every benchmark checks that results agree before
timing."""
