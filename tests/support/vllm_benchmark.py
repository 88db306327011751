"""A program: what ``vllm bench serve`` runs; the command itself looks up a distribution whose name the CPU build
doesn't have.
"""

import argparse

from tests.support.vllm_forks import arguments_of

if __name__ == "__main__":
    from vllm.benchmarks.serve import add_cli_args, main

    parser = argparse.ArgumentParser()
    add_cli_args(parser)
    main(arguments_of(parser))
