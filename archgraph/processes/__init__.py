"""Worker processes: calls side by side, with deadlines and limits of memory."""
