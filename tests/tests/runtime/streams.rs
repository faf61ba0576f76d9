//! Streams of every kind, several at once, from several threads.

use crate::job::{Job, large, mixed, small};
use half::bf16;
use hopper_attention::raw;
use hopper_attention_tests::gpu::{Gpu, Stream};
use hopper_attention_tests::{Call, Case, DeviceProblem, DeviceTest, ElementType, Failure, Inputs, Needs, Profile, ensure};

pub fn tests() -> Vec<DeviceTest> {
    vec![
        DeviceTest::new("streams::of_every_kind", every_kind),
        DeviceTest::new("streams::two_at_once", two_at_once),
        DeviceTest::new("streams::many_at_once", many_at_once),
        DeviceTest::new("streams::work_is_ordered_by_its_stream", ordered),
        DeviceTest::new("streams::created_and_destroyed", created_and_destroyed),
        DeviceTest::of_devices("streams::a_thread_each", Needs::OneDevice, |gpus| a_thread_each(&gpus[0])),
    ]
}

fn every_kind() -> Result<(), Failure> {
    for case in [small(1), large(2)] {
        let job = Job::new(&case)?;
        for stream in [Stream::new()?, Stream::null(), Stream::per_thread()] {
            for _ in 0..3 {
                job.enqueue(&stream)?;
                job.check(&stream)?;
            }
        }
    }
    Ok(())
}

fn two_at_once() -> Result<(), Failure> {
    for (first, second) in [(small(1), small(2)), (large(3), large(4)), (small(5), large(6))] {
        at_once(&[first, second])?;
    }
    Ok(())
}

fn many_at_once() -> Result<(), Failure> {
    let twice: Vec<Case> = mixed().into_iter().flat_map(|case| [Case { seed: case.seed + 100, ..case.clone() }, case]).collect();
    at_once(&twice)
}

/// Enqueues each case on a stream of its own, in turns, so that all are in flight together.
fn at_once(cases: &[Case]) -> Result<(), Failure> {
    let jobs = cases.iter().map(Job::new).collect::<Result<Vec<_>, _>>()?;
    let streams = cases.iter().map(|_| Stream::new()).collect::<Result<Vec<_>, _>>()?;
    for _ in 0..Profile::get().pick(5, 1) {
        for _ in 0..Profile::get().pick(40, 2) {
            for (job, stream) in jobs.iter().zip(&streams) {
                job.enqueue(stream)?;
            }
        }
        // All have to be done before one is read: reading waits for nobody else.
        for stream in &streams {
            stream.wait(|| format!("{} streams at once", streams.len()))?;
        }
        for (job, stream) in jobs.iter().zip(&streams) {
            job.check(stream)?;
        }
    }
    jobs.iter().try_for_each(Job::check_surroundings)
}

/// Each output is the next one's queries, enqueued without waiting: work on another stream than the one given would overtake it.
fn ordered() -> Result<(), Failure> {
    let case = Case::new(ElementType::Bf16, 128, 256, 300).heads(1, 8, 8);
    let stream = Stream::new()?;
    let links = (0..8)
        .map(|seed| {
            let case = Case { seed, ..case.clone() };
            DeviceProblem::<bf16>::new(&case, &Inputs::draw(&case))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let links_of_chain = |wait: bool| -> Result<Vec<bf16>, Failure> {
        let mut previous: Option<raw::Tensor4> = None;
        for link in &links {
            link.poison_output()?;
        }
        for link in &links {
            let q = previous.unwrap_or(link.call.q);
            // SAFETY: all memory belongs to `links`; the work is waited for below.
            unsafe { Call { q, ..link.call }.enqueue(&stream) }?;
            if wait {
                stream.wait(|| "a link of a chain".to_string())?;
            }
            previous = Some(link.call.o);
        }
        stream.wait(|| "a chain".to_string())?;
        Ok(links.last().map(DeviceProblem::output).transpose()?.map_or_else(Vec::new, |output| output.o))
    };
    let expected = links_of_chain(true)?;
    for _ in 0..Profile::get().pick(50, 2) {
        let chained = links_of_chain(false)?;
        ensure!(bytemuck::cast_slice::<_, u16>(&chained) == bytemuck::cast_slice::<_, u16>(&expected), "the chain differs from its links");
    }
    Ok(())
}

/// More streams, one after the other, than the library keeps scheduler slots for.
fn created_and_destroyed() -> Result<(), Failure> {
    let jobs = [Job::new(&large(1))?, Job::new(&small(2))?];
    for turn in 0..Profile::get().pick(3000, 4) {
        let stream = Stream::new()?;
        jobs[0].enqueue(&stream)?;
        stream.wait(|| "a short-lived stream".to_string())?;
        if turn % 100 == 0 {
            jobs[0].check(&stream)?;
            jobs[1].enqueue(&stream)?;
            jobs[1].check(&stream)?;
        }
    }
    jobs[0].enqueue(&Stream::null())?;
    jobs[0].check(&Stream::null())
}

fn a_thread_each(gpu: &'static Gpu) -> Result<(), Failure> {
    let jobs = (0..Profile::get().pick(8, 2)).map(|seed| Job::new(&if seed % 2 == 0 { small(seed) } else { large(seed) }));
    let jobs = jobs.collect::<Result<Vec<_>, _>>()?;
    let work = |job: &Job| {
        gpu.make_current()?;
        let stream = Stream::new()?;
        for _ in 0..Profile::get().pick(100, 2) {
            job.enqueue(&stream)?;
            job.check(&stream)?;
        }
        job.check_surroundings()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = jobs.iter().map(|job| scope.spawn(move || work(job))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())))
    })
}
