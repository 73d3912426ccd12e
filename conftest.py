"""Two test processes on two cores: a thread each, or the threads of one hold up those of the other."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
