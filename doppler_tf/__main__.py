"""`python -m doppler_tf`."""

import sys

from doppler_tf.cli import main

sys.exit(main())
