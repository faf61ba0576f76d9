//! The two protocols of benches/README.md.

use std::time::{Duration, Instant};

use crate::Result;
use crate::gpu::{Event, Gpu};

const BURST_SAMPLES: usize = 21;
const BURST_IDLE: Duration = Duration::from_millis(50);
/// A tenth more than the rule's 5 ms, so that no sample falls short when the clock rises.
const BURST_SAMPLE_S: f64 = 5.5e-3;
const SUSTAINED_SAMPLES: usize = 2;
const SUSTAINED: Duration = Duration::from_secs(2);
const SUSTAINED_COUNTED_S: f64 = 1.0;
const SUSTAINED_CHUNK_S: f64 = 0.02;

/// How launches are strung together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Protocol {
    /// 50 ms idle, then at least 5 ms of launches a sample.
    Burst,
    /// Two seconds of launches, of which the last counts.
    Sustained,
}

impl Protocol {
    pub fn name(self) -> &'static str {
        match self {
            Self::Burst => "burst",
            Self::Sustained => "sustained",
        }
    }
}

/// Microseconds a call, and how many calls a sample holds.
pub struct Samples {
    pub us: Vec<f64>,
    pub calls: usize,
}

/// Times what `enqueue` puts on the stream.
pub fn measure(gpu: &Gpu, protocol: Protocol, enqueue: &mut dyn FnMut() -> Result<()>) -> Result<Samples> {
    match protocol {
        Protocol::Burst => Ok(in_turns(gpu, BURST_SAMPLES, &mut [enqueue])?.remove(0)),
        Protocol::Sustained => {
            let (us, _) = estimate(gpu, enqueue)?;
            let calls = calls_in(SUSTAINED_CHUNK_S, us);
            let samples = (0..SUSTAINED_SAMPLES).map(|_| sustained(gpu, calls, enqueue)).collect::<Result<_>>()?;
            Ok(Samples { us: samples, calls })
        }
    }
}

/// Times each of several by the protocol burst, sample by sample in turns.
pub fn in_turns<F: FnMut() -> Result<()>>(gpu: &Gpu, rounds: usize, contestants: &mut [F]) -> Result<Vec<Samples>> {
    let mut head_starts = vec![];
    let mut samples = vec![];
    for enqueue in contestants.iter_mut() {
        let (us, host_us) = estimate(gpu, enqueue)?;
        let calls = calls_in(BURST_SAMPLE_S, us);
        head_starts.push(2e-4 + 1.3e-6 * calls as f64 * host_us);
        samples.push(Samples { us: vec![], calls });
    }
    for round in 0..rounds {
        for turn in order(round, contestants.len()) {
            std::thread::sleep(BURST_IDLE);
            let (us, _) = sample(gpu, samples[turn].calls, head_starts[turn], &mut contestants[turn])?;
            samples[turn].us.push(us);
        }
    }
    Ok(samples)
}

/// Who follows whom in a round: reversed every other round, rotated every second one, so that everybody begins as often.
fn order(round: usize, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).map(|turn| (turn + round / 2) % count).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// Microseconds a call on the device and on the host, after first calls with whatever is compiled or planned in them.
fn estimate(gpu: &Gpu, enqueue: &mut dyn FnMut() -> Result<()>) -> Result<(f64, f64)> {
    sample(gpu, 2, 0.0, enqueue)?;
    let (us, _) = sample(gpu, 1, 1e-3, enqueue)?;
    sample(gpu, calls_in(5e-3, us).min(20), 2e-3, enqueue)
}

/// How many calls of `us` microseconds fill `seconds`.
fn calls_in(seconds: f64, us: f64) -> usize {
    ((seconds * 1e6 / us).ceil() as usize).clamp(1, 100_000)
}

/// Microseconds a call on the device and on the host. The stream is held while the host enqueues, so the second does not count in the first.
fn sample(gpu: &Gpu, calls: usize, head_start_s: f64, enqueue: &mut dyn FnMut() -> Result<()>) -> Result<(f64, f64)> {
    gpu.spin(head_start_s)?;
    let start = Event::record(gpu)?;
    let begin = Instant::now();
    for _ in 0..calls {
        enqueue()?;
    }
    let host_s = begin.elapsed().as_secs_f64();
    let end = Event::record(gpu)?;
    gpu.synchronize()?;
    let per_call = 1e6 / calls as f64;
    Ok((end.seconds_since(&start)? * per_call, host_s * per_call))
}

/// Microseconds a call over the last second of two. An event follows every `chunk` calls; the host stays three chunks ahead.
fn sustained(gpu: &Gpu, chunk: usize, enqueue: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
    let mut events = vec![Event::record(gpu)?];
    let begin = Instant::now();
    while begin.elapsed() < SUSTAINED {
        for _ in 0..chunk {
            enqueue()?;
        }
        events.push(Event::record(gpu)?);
        if events.len() > 3 {
            events[events.len() - 4].synchronize()?;
        }
    }
    gpu.synchronize()?;
    let times: Vec<f64> = events.iter().map(|event| event.seconds_since(&events[0])).collect::<Result<_>>()?;
    let last = times.len() - 1;
    // At least one chunk counts, however long it is.
    let first = times.iter().position(|&at| at >= times[last] - SUSTAINED_COUNTED_S).unwrap_or(0).min(last - 1);
    Ok((times[last] - times[first]) * 1e6 / ((last - first) * chunk) as f64)
}

/// The middle of the samples; `NaN` of none.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        len if len.is_multiple_of(2) => (sorted[len / 2 - 1] + sorted[len / 2]) / 2.0,
        len => sorted[len / 2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn nobody_always_follows_the_same_and_everybody_begins() {
        let orders = [0, 1, 2, 3].map(|round| order(round, 3));
        assert_eq!(orders, [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]]);
        assert_eq!([0, 1, 2, 3].map(|round| order(round, 2)), [[0, 1], [1, 0], [1, 0], [0, 1]]);
        assert_eq!(order(1, 1), [0]);
        for count in 2..6 {
            let first: Vec<usize> = (0..2 * count).map(|round| order(round, count)[0]).collect();
            assert!((0..count).all(|turn| first.iter().filter(|&&who| who == turn).count() == 2), "{first:?}");
        }
    }

    #[test]
    fn calls_fill_the_time() {
        assert_eq!(calls_in(5e-3, 400.0), 13);
        assert_eq!(calls_in(5e-3, 4e5), 1);
    }
}
