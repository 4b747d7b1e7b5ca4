"""Plans proved by running them: jobs whose stages sleep, measured, planned and measured again."""
