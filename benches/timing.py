"""The two protocols (README.md, "The rule" and "Protocols")."""
import math
import statistics
import time

import torch

BURST_SAMPLES, BURST_IDLE_S, BURST_SAMPLE_S = 21, 0.05, 5e-3
SUSTAINED_SAMPLES, SUSTAINED_S, SUSTAINED_COUNTED_S, SUSTAINED_CHUNK_S = 2, 2.0, 1.0, 0.02
# torch.cuda._sleep counts cycles: at the card's highest clock it lasts as long as asked, at a lower one longer.
SPIN_HZ = 2.0e9


class Timer:
    """Times one contestant: `call()` enqueues once, under the context that `selected()` returns."""

    def __init__(self, call, selected):
        self.call, self.selected = call, selected
        self.us = 0.0          # estimate of one call on the device
        self.enqueue_us = 0.0  # and of enqueueing it on the host

    def sample(self, calls, head_start_s):
        """Microseconds a call of `calls` back-to-back launches, which the host enqueues while a spin kernel holds the stream."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self.selected():
            torch.cuda._sleep(int(head_start_s * SPIN_HZ))
            start.record()
            began = time.perf_counter()
            for _ in range(calls):
                self.call()
            self.enqueue_us = (time.perf_counter() - began) / calls * 1e6
            end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e3 / calls

    def estimate(self):
        """The first calls, with whatever is compiled or planned in them, then the estimates."""
        self.sample(2, 0.0)
        self.us = self.sample(1, 1e-3)
        self.us = self.sample(calls_in(5e-3, self.us, most=20), 2e-3)

    def sustained(self, chunk):
        """Microseconds a call over the last second of two. An event follows every `chunk` calls; the host stays three chunks ahead."""
        events = [torch.cuda.Event(enable_timing=True)]
        with self.selected():
            events[0].record()
            began = time.perf_counter()
            while time.perf_counter() - began < SUSTAINED_S:
                for _ in range(chunk):
                    self.call()
                events.append(torch.cuda.Event(enable_timing=True))
                events[-1].record()
                if len(events) > 3:
                    events[-4].synchronize()
        torch.cuda.synchronize()
        times_ms = [events[0].elapsed_time(event) for event in events]
        first = counted_from(times_ms)
        return (times_ms[-1] - times_ms[first]) * 1e3 / ((len(times_ms) - 1 - first) * chunk)


def calls_in(seconds, us, most=100_000):
    """How many calls of `us` microseconds fill `seconds`."""
    return max(1, min(most, math.ceil(seconds * 1e6 / us)))


def counted_from(times_ms):
    """Index of the event from which the last second counts: at least one chunk does, however long it is."""
    begin_ms = times_ms[-1] - SUSTAINED_COUNTED_S * 1e3
    return min(next(i for i, at in enumerate(times_ms) if at >= begin_ms), len(times_ms) - 2)


def turn(contestants, number):
    """The order of round `number`: reversed every other round, rotated every second one, so that everybody begins as often."""
    shift = number // 2 % len(contestants)
    order = contestants[shift:] + contestants[:shift]
    return order[::-1] if number % 2 else order


def held_sample(timer, calls, head_start_s, tries=5):
    """A sample, taken again with a longer head start while the host was late for it, and the head start for the next one. After so many tries the
    last sample stands, late or not."""
    for _ in range(tries):
        us = timer.sample(calls, head_start_s)
        enqueued_s = calls * timer.enqueue_us * 1e-6
        if enqueued_s <= head_start_s:
            break
        head_start_s = 1.3 * enqueued_s
    return us, head_start_s


def burst(timers, rounds=BURST_SAMPLES, idle_s=BURST_IDLE_S):
    """Samples of each timer, in turns, and the calls of a sample: a list of (samples_us, calls)."""
    # A tenth more than asked, so that no sample falls short of the rule when the clock rises.
    calls = {timer: calls_in(1.1 * BURST_SAMPLE_S, timer.us) for timer in timers}
    head_start_s = 2e-4 + 1.3e-6 * max(calls[timer] * timer.enqueue_us for timer in timers)
    samples = {timer: [] for timer in timers}
    for number in range(rounds):
        for timer in turn(timers, number):
            time.sleep(idle_s)
            us, head_start_s = held_sample(timer, calls[timer], head_start_s)
            samples[timer].append(us)
    return [(samples[timer], calls[timer]) for timer in timers]


def sustained(timers, rounds=SUSTAINED_SAMPLES):
    """The same, under continuous load."""
    calls = {timer: calls_in(SUSTAINED_CHUNK_S, timer.us) for timer in timers}
    samples = {timer: [] for timer in timers}
    for number in range(rounds):
        for timer in turn(timers, number):
            samples[timer].append(timer.sustained(calls[timer]))
    return [(samples[timer], calls[timer]) for timer in timers]


PROTOCOLS = {"burst": burst, "sustained": sustained}


def measure(timers, flops, protocol, **options):
    """The fields of a RESULT for each timer, whose estimates must have been made. `options` are the protocol's."""
    return [result(flops, samples, calls) for samples, calls in (PROTOCOLS[protocol](timers, **options) if timers else [])]


def result(flops, samples_us, calls):
    us = statistics.median(samples_us)
    return dict(tflops=rounded(flops / us / 1e6), us_median=rounded(us), samples_us=list(map(rounded, samples_us)), calls_per_sample=calls)


def rounded(value):
    """Six digits: more than a measurement has."""
    return float(f"{value:.6g}")
