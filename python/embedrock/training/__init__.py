"""The trainer: one loop for models whose tables are on storage or in memory."""
