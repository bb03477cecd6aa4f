"""Studies: experiments that one command runs, resumes and draws."""
