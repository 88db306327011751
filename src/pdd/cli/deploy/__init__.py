"""Running a whole deployment on this machine: the supervisor, and the commands that watch and change what runs."""
