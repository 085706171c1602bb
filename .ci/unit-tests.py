#!/usr/bin/env python3
"""Runs all tests of the workspace but the scenarios, several programs side by side: cargo runs one after another, and most of them wait.

    cargo test --workspace --locked --no-run --message-format json >FILE
    .ci/unit-tests.py real|simulated|all FILE [PROGRAMS AT A TIME]

Those that are simulated, and examples in the documentation, wait for nothing: however slowly they run, their outcome is the same.
Prints the output of each program when it has ended, and at the end how long the slowest took.
"""

import concurrent.futures
import json
import os
import subprocess
import sys
import time

# They wait most, so they begin first.
SLOW = ("node", "plugin_new", "nodes", "tunnel", "one_cluster", "liqo")
SCENARIOS = "scenarios"
SIMULATED = "liqo"
DOCUMENTATION = ("examples in the documentation", ["cargo", "test", "--workspace", "--locked", "--doc", "--quiet"], os.getcwd())


def programs(messages, kind):
    """The test programs of a kind, each with the folder of its package, in which cargo would run it."""
    for line in messages:
        message = json.loads(line)
        if not message.get("executable") or not message["profile"]["test"]:
            continue
        name = message["target"]["name"]
        if name != SCENARIOS and kind in ("all", "simulated" if name == SIMULATED else "real"):
            yield name, [message["executable"]], os.path.dirname(message["manifest_path"])
    if kind != "real":
        yield DOCUMENTATION


def run(program):
    name, command, folder = program
    begun = time.monotonic()
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return name, done, time.monotonic() - begun


def main():
    kind, file = sys.argv[1:3]
    at_a_time = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    with open(file, encoding="utf-8") as messages:
        everything = sorted(programs(messages, kind), key=lambda program: program[0] not in SLOW)
    failed, times = [], []
    with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
        for ended in concurrent.futures.as_completed([pool.submit(run, program) for program in everything]):
            name, done, seconds = ended.result()
            print(f"-- {name}: {'passed' if done.returncode == 0 else 'FAILED'} after {seconds:.0f} s", flush=True)
            # What passed needs only its sum.
            lines = done.stdout.decode(errors="replace").splitlines()
            shown = lines if done.returncode else [line for line in lines if line.startswith("test result")]
            print("\n".join(shown), flush=True)
            times.append((seconds, name))
            if done.returncode:
                failed.append(name)
    print("the slowest: " + ", ".join(f"{name} {seconds:.0f} s" for seconds, name in sorted(times, reverse=True)[:8]))
    if failed:
        sys.exit("these failed: " + ", ".join(failed))


if __name__ == "__main__":
    main()
