#!/usr/bin/env python3
"""Connects two TAP interfaces by a line with latency and a rate, as `tc netem delay ... rate ...` does on kernels that
have it. Each direction has a queue of its own, first in, first out; what exceeds its limit is dropped.

usage: slow_line.py TAP TAP ONE_WAY_MILLISECONDS MBIT_PER_SECOND
Prints "ready" once both interfaces exist, and runs until it is killed.
"""
import collections
import fcntl
import os
import select
import struct
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 2, 0x1000
QUEUE_PACKETS = 1000


def tap(name):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


class Direction:
    def __init__(self, source, sink, delay, rate):
        self.source, self.sink, self.delay, self.rate = source, sink, delay, rate
        self.queue = collections.deque()  # (arrival, packet)
        self.free = 0.0  # when the line has sent what is queued

    def take(self, now):
        while True:
            try:
                packet = os.read(self.source, 65536)
            except BlockingIOError:
                return
            if len(self.queue) >= QUEUE_PACKETS:
                continue
            self.free = max(self.free, now) + 8 * len(packet) / self.rate
            self.queue.append((self.free + self.delay, packet))

    def deliver(self, now):
        while self.queue and self.queue[0][0] <= now:
            try:
                os.write(self.sink, self.queue.popleft()[1])
            except OSError:
                pass  # the interface is down


def main():
    first, second = tap(sys.argv[1]), tap(sys.argv[2])
    delay, rate = float(sys.argv[3]) * 1e-3, float(sys.argv[4]) * 1e6
    directions = [Direction(first, second, delay, rate), Direction(second, first, delay, rate)]
    print("ready", flush=True)
    while True:
        due = [d.queue[0][0] for d in directions if d.queue]
        wait = max(0.0, min(due) - time.monotonic()) if due else None
        try:
            select.select([first, second], [], [], wait)
        except InterruptedError:
            continue
        now = time.monotonic()
        for d in directions:
            try:
                d.take(now)
            except OSError:
                pass
            d.deliver(now)


main()
