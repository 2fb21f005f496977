"""Chat text in and out: rendering to token ids, the tool-call grammar, validation, the rehearsal contract."""
