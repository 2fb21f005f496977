"""Test-time scaling: private rehearsals before the one committed run."""
