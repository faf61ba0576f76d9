//! Two devices of one host.

use crate::job::{Job, large, small};
use hopper_attention::Error;
use hopper_attention_tests::gpu::{Gpu, Stream};
use hopper_attention_tests::{Call, DeviceTest, Failure, Needs, Profile, ensure};

pub fn tests() -> Vec<DeviceTest> {
    let test = |name, body: fn(&'static [Gpu]) -> Result<(), Failure>| DeviceTest::of_devices(name, Needs::TwoDevices, body);
    vec![
        test("devices::second_from_a_fresh_thread", second_from_a_fresh_thread),
        test("devices::in_turns_on_one_thread", in_turns),
        test("devices::both_at_once", both_at_once),
        test("devices::memory_of_the_other", memory_of_the_other),
    ]
}

/// A context of the second device, first used by a thread that never had another, while the first is current elsewhere.
fn second_from_a_fresh_thread(gpus: &'static [Gpu]) -> Result<(), Failure> {
    let first = Job::new(&large(1))?;
    let on_second = || {
        let context = gpus[1].new_context()?;
        Job::new(&small(1))?;
        Job::new(&large(2))?;
        drop(context);
        Ok::<_, Failure>(())
    };
    std::thread::scope(|scope| scope.spawn(on_second).join().unwrap_or_else(|_| Err("the thread panicked".into())))?;
    first.enqueue(&Stream::null())?;
    first.check(&Stream::null())
}

fn in_turns(gpus: &'static [Gpu]) -> Result<(), Failure> {
    let mut jobs = Vec::new();
    for (gpu, seed) in gpus.iter().take(2).zip(1..) {
        gpu.make_current()?;
        jobs.push((gpu, Job::new(&large(seed))?, Job::new(&small(seed))?, Stream::new()?));
    }
    for _ in 0..Profile::get().pick(50, 2) {
        for (gpu, large, small, stream) in &jobs {
            gpu.make_current()?;
            large.enqueue(stream)?;
            small.enqueue(stream)?;
        }
        for (gpu, large, small, stream) in &jobs {
            gpu.make_current()?;
            large.check(stream)?;
            small.check(stream)?;
        }
    }
    Ok(())
}

fn both_at_once(gpus: &'static [Gpu]) -> Result<(), Failure> {
    let work = |gpu: &'static Gpu| {
        gpu.make_current()?;
        let (jobs, stream) = ([Job::new(&large(1))?, Job::new(&small(2))?], Stream::new()?);
        for _ in 0..Profile::get().pick(200, 2) {
            for job in &jobs {
                job.enqueue(&stream)?;
                job.check(&stream)?;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = gpus.iter().map(|gpu| scope.spawn(move || work(gpu))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())))
    })
}

/// Tensors of the second device while the first is current: refused where addresses are checked, and right with the second one current.
fn memory_of_the_other(gpus: &'static [Gpu]) -> Result<(), Failure> {
    gpus[1].make_current()?;
    let job = Job::new(&small(3))?;
    let problem = &job.problem;
    let call = Call { options: problem.call.options.check_addresses(true), ..problem.call };
    gpus[0].make_current()?;
    // SAFETY: the call is refused; if it were not, the memory outlives the work, which `check_untouched` would wait for.
    let refused = unsafe { call.enqueue(&Stream::null()) };
    let named = matches!(&refused, Err(Error::Invalid { field, .. }) if field == "q.address");
    ensure!(named, "memory of another device: {refused:?}");
    gpus[1].make_current()?;
    problem.check_untouched()?;
    job.enqueue(&Stream::null())?;
    job.check(&Stream::null())
}
