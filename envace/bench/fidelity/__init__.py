"""How true the rehearsed responses are."""
