//! Captured into graphs and replayed. Capture is in the mode in which the driver refuses whatever allocates or waits, on every thread.

use crate::job::{Job, large, small};
use half::bf16;
use hopper_attention::{DType, raw};
use hopper_attention_kernels::config::FORWARD;
use hopper_attention_tests::gpu::{Gpu, Graph, Stream};
use hopper_attention_tests::{Case, DeviceProblem, DeviceTest, ElementType, Failure, Inputs, Needs, Profile, check_output, ensure};

pub fn tests() -> Vec<DeviceTest> {
    vec![
        DeviceTest::new("graphs::every_kernel_captured", every_kernel),
        DeviceTest::of_devices("graphs::replayed_1000_times_beside_eager_launches", Needs::OneDevice, |gpus| beside_eager(&gpus[0])),
        DeviceTest::new("graphs::two_at_once", two_at_once),
        DeviceTest::new("graphs::parallel_branches", parallel_branches),
        DeviceTest::new("graphs::outlive_their_stream", outlive_their_stream),
        DeviceTest::of_devices("graphs::first_use_during_capture", Needs::OneDevice, |gpus| first_use(&gpus[0])),
        DeviceTest::of_devices("graphs::prepared_then_captured", Needs::OneDevice, |gpus| prepared(&gpus[0])),
    ]
}

fn capture(job: &Job, stream: &Stream) -> Result<Graph, Failure> {
    stream.capture(|| job.enqueue(stream))
}

fn launch(graph: &Graph, stream: &Stream) -> Result<(), Failure> {
    // SAFETY: the graphs of these tests work on the memory of jobs, which outlive the work; one graph is in flight once at a time.
    unsafe { graph.launch(stream) }
}

fn every_kernel() -> Result<(), Failure> {
    let stream = Stream::new()?;
    for config in FORWARD {
        let case = Case::native(ElementType::Bf16, &config, 150, 180);
        let job = Job::new(&case.heads(1, Profile::get().pick(100, 2), 1))?;
        let graph = capture(&job, &stream)?;
        for _ in 0..3 {
            launch(&graph, &stream)?;
            job.check(&stream)?;
        }
    }
    Ok(())
}

/// Captured on one stream, replayed on another, while a second thread launches the same kernels eagerly.
fn beside_eager(gpu: &'static Gpu) -> Result<(), Failure> {
    for (captured, eager) in [(small(1), small(2)), (large(3), large(4))] {
        let (captured, eager) = (Job::new(&captured)?, Job::new(&eager)?);
        let graph = capture(&captured, &Stream::new()?)?;
        let stream = Stream::new()?;
        let replay = || {
            for turn in 0..Profile::get().pick(1000, 3) {
                launch(&graph, &stream)?;
                if turn % 20 == 0 {
                    captured.check(&stream)?;
                }
            }
            captured.check(&stream)?;
            captured.check_surroundings()
        };
        gpu.beside(replay, |stream| {
            for _ in 0..Profile::get().pick(20, 1) {
                eager.enqueue(stream)?;
            }
            eager.check(stream)
        })?;
    }
    Ok(())
}

/// Two captures of one stream, replayed side by side on two others.
fn two_at_once() -> Result<(), Failure> {
    for (first, second) in [(small(1), small(2)), (large(3), large(4))] {
        let jobs = [Job::new(&first)?, Job::new(&second)?];
        let origin = Stream::new()?;
        let graphs = [capture(&jobs[0], &origin)?, capture(&jobs[1], &origin)?];
        let streams = [Stream::new()?, Stream::new()?];
        for _ in 0..Profile::get().pick(20, 1) {
            for _ in 0..Profile::get().pick(20, 2) {
                launch(&graphs[0], &streams[0])?;
                launch(&graphs[1], &streams[1])?;
            }
            streams[0].wait(|| "two graphs at once".to_string())?;
            streams[1].wait(|| "two graphs at once".to_string())?;
            jobs[0].check(&streams[0])?;
            jobs[1].check(&streams[1])?;
        }
    }
    Ok(())
}

/// One graph with two branches, which the driver may run side by side.
fn parallel_branches() -> Result<(), Failure> {
    for (first, second) in [(small(1), small(2)), (large(3), large(4))] {
        let jobs = [Job::new(&first)?, Job::new(&second)?];
        let (stream, branch) = (Stream::new()?, Stream::new()?);
        let graph = stream.capture(|| {
            branch.follow(&stream)?;
            jobs[0].enqueue(&stream)?;
            jobs[1].enqueue(&branch)?;
            stream.follow(&branch)
        })?;
        for _ in 0..Profile::get().pick(100, 2) {
            launch(&graph, &stream)?;
            jobs[0].check(&stream)?;
            jobs[1].check(&stream)?;
        }
    }
    Ok(())
}

fn outlive_their_stream() -> Result<(), Failure> {
    let job = Job::new(&large(1))?;
    let graph = {
        let short_lived = Stream::new()?;
        capture(&job, &short_lived)?
    };
    // Streams that may get the handle of the one that is gone.
    let streams = [Stream::new()?, Stream::new()?];
    for stream in &streams {
        launch(&graph, stream)?;
        job.check(stream)?;
    }
    Ok(())
}

/// The very first call in a context happens while a stream is captured.
fn first_use(gpu: &'static Gpu) -> Result<(), Failure> {
    let expected = Job::new(&large(7))?.expected;
    let context = gpu.new_context()?;
    let inputs = Inputs::draw(&large(7));
    {
        let problem = DeviceProblem::<bf16>::new(&large(7), &inputs)?;
        let stream = Stream::new()?;
        let graph = stream.capture(|| problem.enqueue(&stream))?;
        launch(&graph, &stream)?;
        stream.wait(|| "a first use during capture".to_string())?;
        ensure!(problem.output()?.same_bits(&expected), "another result than in the primary context");
    }
    drop(context);
    gpu.make_current()
}

fn prepared(gpu: &'static Gpu) -> Result<(), Failure> {
    let context = gpu.new_context()?;
    {
        raw::prepare(128, DType::Bf16, &raw::Options::new().causal(true))?;
        let problem = DeviceProblem::<bf16>::new(&small(8), &Inputs::draw(&small(8)))?;
        let stream = Stream::new()?;
        let graph = stream.capture(|| problem.enqueue(&stream))?;
        launch(&graph, &stream)?;
        stream.wait(|| "a prepared kernel".to_string())?;
        check_output(&small(8), &Inputs::draw(&small(8)), &problem.output()?)?;
    }
    drop(context);
    gpu.make_current()
}
