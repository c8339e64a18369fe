"""A small program that ends as it is told: `python any_ending.py HOW [--idle]`; idle, it runs no kernel."""

import argparse
import atexit
import ctypes
import os
import signal
import sys
import threading
import time

from neighbour import divided, table  # a module beside the script

parser = argparse.ArgumentParser()
parser.add_argument("how")
parser.add_argument("--idle", action="store_true")
settings = parser.parse_args()


class Odd(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def work(size: int) -> float:
    return (table(size).clone().realize() * 2).sum().item()


def later() -> None:
    time.sleep(0.3)
    print(f"later {work(9):.1f}", flush=True)


if not settings.idle:
    print(f"first {work(8):.1f}", flush=True)
match settings.how:
    case "lines":
        print(f"read {sum(int(line) for line in sys.stdin)}")
        print("\n".join("much to say" for _ in range(20_000)))
    case "exit":
        sys.exit(0)
    case "exit-3":
        sys.exit(3)  # here: exit_3
    case "exit-text":
        sys.exit("no data here")  # here: exit_text
    case "leave":
        os._exit(0)
    case "leave-4":
        os._exit(4)  # here: leave_4
    case "exit-true":
        sys.exit(True)  # here: exit_true
    case "raise":
        raise RuntimeError("the loss is\nnot a number")  # here: raise
    case "assert":
        assert not table(2).shape  # here: assert
    case "below":
        divided(0)
    case "odd":
        raise Odd  # here: odd
    case "told":
        signal.raise_signal(signal.SIGTERM)  # here: told
        time.sleep(60)
    case "interrupt":
        signal.raise_signal(signal.SIGINT)  # here: interrupt
    case "killed":
        os.kill(os.getpid(), 9)
    case "dereferences":
        ctypes.string_at(1)
    case "divides":  # in native code: a kernel's own SIGFPE on x86
        os.kill(os.getpid(), signal.SIGFPE)
    case "aborts":
        os.abort()
    case "real-time":
        os.kill(os.getpid(), signal.SIGRTMIN + 3)
    case "replaced":
        os.execv(sys.executable, [sys.executable, "-c", "pass"])  # here: replaced
    case "later":
        threading.Thread(target=later).start()
        atexit.register(later)
    case "deaf":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("waiting", flush=True)
        time.sleep(36_000)
    case "wait" | "save":
        try:
            print("waiting", flush=True)
            while True:
                time.sleep(0.05)
        except KeyboardInterrupt:
            if settings.how == "wait":
                raise
            print("saved", flush=True)
