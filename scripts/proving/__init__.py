"""Plans proved by running them: jobs whose stages sleep, measured, planned, run and measured again."""
