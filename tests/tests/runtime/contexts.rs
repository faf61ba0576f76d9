//! Contexts: created and destroyed, first used by a fresh thread, several, none.

use crate::job::{Job, large, small};
use hopper_attention::{Error, raw};
use hopper_attention_tests::gpu::{Gpu, Stream, no_current_context};
use hopper_attention_tests::{Case, DeviceTest, Failure, Needs, Profile, ensure};

pub fn tests() -> Vec<DeviceTest> {
    let test =
        |name, body: fn(&'static Gpu) -> Result<(), Failure>| DeviceTest::of_devices(name, Needs::OneDevice, move |gpus| body(&gpus[0]));
    vec![
        test("contexts::first_call_from_a_fresh_thread", fresh_thread),
        test("contexts::first_calls_from_many_threads", many_threads),
        test("contexts::created_and_destroyed_in_a_loop", created_and_destroyed),
        test("contexts::in_turns_on_one_thread", in_turns),
        test("contexts::none_is_current", none_is_current),
        test("contexts::stream_of_another_context", stream_of_another),
    ]
}

fn fresh_thread(gpu: &'static Gpu) -> Result<(), Failure> {
    let first_calls = || {
        let context = gpu.new_context()?;
        Job::new(&small(1))?;
        Job::new(&large(2))?;
        drop(context);
        Ok(())
    };
    std::thread::scope(|scope| scope.spawn(first_calls).join().unwrap_or_else(|_| Err("the thread panicked".into())))
}

fn many_threads(gpu: &'static Gpu) -> Result<(), Failure> {
    let context = gpu.new_context()?;
    let first_call = |seed| {
        context.make_current()?;
        Job::new(&if seed % 2 == 0 { small(seed) } else { large(seed) })?;
        Ok(())
    };
    let called = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..Profile::get().pick(8, 3)).map(|seed| scope.spawn(move || first_call(seed))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())))
    });
    drop(context);
    gpu.make_current()?;
    called
}

/// The address of a context is used again, its kernels and scheduler slots are not.
fn created_and_destroyed(gpu: &'static Gpu) -> Result<(), Failure> {
    for turn in 0..Profile::get().pick(30, 3) {
        let context = gpu.new_context()?;
        for case in [small(turn), large(turn + 1)] {
            let job = Job::new(&case)?;
            let stream = Stream::new()?;
            job.enqueue(&stream)?;
            job.check(&stream)?;
        }
        drop(context);
        gpu.make_current()?;
    }
    Job::new(&large(0)).map(|_| ())
}

fn in_turns(gpu: &'static Gpu) -> Result<(), Failure> {
    let primary = Job::new(&large(1))?;
    let context = gpu.new_context()?;
    let own = Job::new(&large(2))?;
    for _ in 0..Profile::get().pick(20, 2) {
        gpu.make_current()?;
        primary.enqueue(&Stream::null())?;
        primary.check(&Stream::null())?;
        context.make_current()?;
        own.enqueue(&Stream::null())?;
        own.check(&Stream::null())?;
    }
    drop(own);
    drop(context);
    gpu.make_current()
}

fn call(job: &Job, stream: &Stream) -> Result<(), Error> {
    // SAFETY: the memory is the job's; what is enqueued is waited for by the caller.
    unsafe { job.problem.call.enqueue(stream) }
}

fn none_is_current(gpu: &'static Gpu) -> Result<(), Failure> {
    let job = Job::new(&small(1))?;
    no_current_context()?;
    let refused = call(&job, &Stream::null());
    let prepared = raw::prepare(64, hopper_attention::DType::F16, &raw::Options::new());
    gpu.make_current()?;
    ensure!(matches!(refused, Err(Error::NoContext)), "without a context: {refused:?}");
    ensure!(matches!(prepared, Err(Error::NoContext)), "preparing without a context: {prepared:?}");
    job.problem.check_untouched()
}

fn stream_of_another(gpu: &'static Gpu) -> Result<(), Failure> {
    let cases: [Case; 2] = [small(1), large(2)];
    for case in &cases {
        let context = gpu.new_context()?;
        let foreign = Stream::new()?;
        gpu.make_current()?;
        let job = Job::new(case)?;
        let refused = call(&job, &foreign);
        let named = matches!(&refused, Err(Error::Invalid { field, .. }) if field == "stream");
        ensure!(named, "a stream of another context: {refused:?}");
        job.problem.check_untouched()?;
        drop(job);
        context.make_current()?;
        drop(foreign);
        drop(context);
        gpu.make_current()?;
    }
    Ok(())
}
