//! Streams and graphs.

use super::{Handle, check, driver};
use crate::{Failure, Profile};
use hopper_attention_driver::{
    CU_EVENT_DISABLE_TIMING, CU_STREAM_NON_BLOCKING, CUgraph, CUgraphExec, CUresult, CUstream, CUstreamCaptureMode,
};
use std::ptr;
use std::time::{Duration, Instant};

/// A stream of the current context.
#[derive(Debug)]
pub struct Stream {
    stream: Handle<CUstream>,
}

impl Stream {
    /// A stream that does not wait for the default stream.
    pub fn new() -> Result<Self, Failure> {
        let mut stream = ptr::null_mut();
        // SAFETY: `stream` is writable.
        check("cuStreamCreate", unsafe { driver()?.cuStreamCreate(&mut stream, CU_STREAM_NON_BLOCKING) })?;
        Ok(Self { stream: Handle(stream) })
    }

    /// The default stream.
    pub fn null() -> Self {
        Self { stream: Handle(ptr::null_mut()) }
    }

    /// This thread's default stream.
    pub fn per_thread() -> Self {
        // `CU_STREAM_PER_THREAD` of cuda.h.
        Self { stream: Handle(ptr::without_provenance_mut(2)) }
    }

    /// The driver's handle.
    pub fn raw(&self) -> CUstream {
        self.stream.0
    }

    /// Waits for the work on this stream. Work that never ends cannot be stopped, so the process ends then, with a message that names
    /// `what` was waited for.
    pub fn wait(&self, what: impl Fn() -> String) -> Result<(), Failure> {
        let start = Instant::now();
        loop {
            // SAFETY: the stream lives as long as `self`.
            match unsafe { driver()?.cuStreamQuery(self.raw()) } {
                CUresult::NOT_READY => {}
                code => return check("the work on the stream", code),
            }
            if start.elapsed() > Profile::get().patience() {
                eprintln!("HANG: the device did not finish within {:?}: {}", Profile::get().patience(), what());
                std::process::exit(1);
            }
            // Short work is met without sleeping.
            if start.elapsed() > Duration::from_millis(2) {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }

    /// Lets what comes next on this stream wait for what is on `other` now; a capture of `other` then covers this stream too.
    pub fn follow(&self, other: &Self) -> Result<(), Failure> {
        let driver = driver()?;
        let mut event = ptr::null_mut();
        // SAFETY: `event` is writable.
        check("cuEventCreate", unsafe { driver.cuEventCreate(&mut event, CU_EVENT_DISABLE_TIMING) })?;
        // SAFETY: event and streams are alive.
        let recorded = check("cuEventRecord", unsafe { driver.cuEventRecord(event, other.raw()) });
        // SAFETY: as above.
        let waits = recorded.and_then(|()| check("cuStreamWaitEvent", unsafe { driver.cuStreamWaitEvent(self.raw(), event, 0) }));
        // SAFETY: the driver keeps the event until the wait is over.
        waits.and(check("cuEventDestroy", unsafe { driver.cuEventDestroy_v2(event) }))
    }

    /// Records what `enqueue` puts on this stream, while calls that capture does not allow fail on every thread.
    pub fn capture(&self, enqueue: impl FnOnce() -> Result<(), Failure>) -> Result<Graph, Failure> {
        let driver = driver()?;
        // SAFETY: the stream lives as long as `self`.
        check("cuStreamBeginCapture", unsafe { driver.cuStreamBeginCapture_v2(self.raw(), CUstreamCaptureMode::GLOBAL) })?;
        let enqueued = enqueue();
        let mut graph: CUgraph = ptr::null_mut();
        // SAFETY: `graph` is writable.
        let ended = check("cuStreamEndCapture", unsafe { driver.cuStreamEndCapture(self.raw(), &mut graph) });
        enqueued.and(ended)?;
        let mut exec = ptr::null_mut();
        // SAFETY: `exec` is writable, and the graph comes from the capture.
        let instantiated = check("cuGraphInstantiate", unsafe { driver.cuGraphInstantiateWithFlags(&mut exec, graph, 0) });
        // SAFETY: an instantiated graph does not need the one it was made from.
        let destroyed = check("cuGraphDestroy", unsafe { driver.cuGraphDestroy(graph) });
        instantiated.and(destroyed)?;
        Ok(Graph { exec: Handle(exec) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // 0, 1 and 2 are the default streams.
        if let (true, Ok(driver)) = (self.raw().addr() > 2, driver()) {
            // SAFETY: the stream is this value's own; the driver frees it when its work is done.
            let _: CUresult = unsafe { driver.cuStreamDestroy_v2(self.raw()) };
        }
    }
}

/// A graph that can be launched.
#[derive(Debug)]
pub struct Graph {
    exec: Handle<CUgraphExec>,
}

impl Graph {
    /// Enqueues all of it on `stream`.
    ///
    /// # Safety
    ///
    /// What the captured work reads and writes is as it was asked for when it was captured.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<(), Failure> {
        // SAFETY: both handles are alive; the rest is the caller's.
        check("cuGraphLaunch", unsafe { driver()?.cuGraphLaunch(self.exec.0, stream.raw()) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Ok(driver) = driver() {
            // SAFETY: the graph is this value's own; the driver frees it when its work is done.
            let _: CUresult = unsafe { driver.cuGraphExecDestroy(self.exec.0) };
        }
    }
}
