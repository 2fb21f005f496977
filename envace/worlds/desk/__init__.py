"""The desk: an embedded customer-service world with a task generator, an expert and floors."""
