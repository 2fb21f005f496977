"""What every part of the project needs once: files, processes, the chat client, redaction."""
