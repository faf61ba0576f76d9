//! Stream capture, and the graphs that come of it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use super::abi::Out;
use super::error::{Code, Outcome};
use super::queue::{Ticket, Work};
use super::state::*;
use super::stream::{Stream, resolve};

const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;

/// A node: what it comes after, and its work.
#[derive(Clone)]
pub struct Node {
    after: Vec<usize>,
    work: Work,
}

/// A capture in progress.
pub struct Capture {
    pub id: u64,
    origin: Handle,
    mode: u32,
    thread: ThreadId,
    nodes: Mutex<Vec<Node>>,
    joined: Mutex<Vec<Handle>>,
    invalidated: AtomicBool,
}

impl Capture {
    /// Breaks the capture.
    pub fn invalidate(&self) {
        self.invalidated.store(true, Ordering::Release);
    }

    /// `CUstreamCaptureStatus`: active or invalidated.
    pub fn status(&self) -> u32 {
        if self.invalidated.load(Ordering::Acquire) { 2 } else { 1 }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a node.
    pub fn add(&self, after: Vec<usize>, work: Work) -> Outcome<usize> {
        if self.status() == 2 {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        let mut nodes = self.lock();
        nodes.push(Node { after, work });
        Ok(nodes.len() - 1)
    }

    /// Another stream takes part.
    pub fn join(&self, stream: Handle) -> Outcome {
        if self.status() == 2 {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        self.joined.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        Ok(())
    }

    /// Whether every node comes before one of `ends`.
    fn all_before(&self, ends: &[usize]) -> bool {
        let nodes = self.lock();
        let mut reached = vec![false; nodes.len()];
        let mut stack = ends.to_vec();
        while let Some(node) = stack.pop() {
            if !std::mem::replace(&mut reached[node], true) {
                stack.extend(&nodes[node].after);
            }
        }
        reached.iter().all(|&r| r)
    }
}

static ACTIVE: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());

fn active() -> MutexGuard<'static, Vec<Arc<Capture>>> {
    ACTIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

/// Calls that may wait or allocate are forbidden while a capture is in progress, as far as its mode and the thread's reach.
pub fn refuse_unsafe_call() -> Outcome {
    let mode = MODE.get();
    if mode == RELAXED {
        return Ok(());
    }
    let thread = std::thread::current().id();
    let forbids =
        |capture: &&Arc<Capture>| (capture.thread == thread && capture.mode != RELAXED) || (mode == GLOBAL && capture.mode == GLOBAL);
    match active().iter().find(forbids) {
        Some(capture) => {
            capture.invalidate();
            Err(Code::STREAM_CAPTURE_UNSUPPORTED)
        }
        None => Ok(()),
    }
}

/// The default stream cannot be asked about captures while a blocking stream is captured.
pub fn check_default(stream: &Stream) -> Outcome {
    let blocks = |s: &Arc<Stream>| s.flags & 1 == 0 && s.context.handle == stream.context.handle && s.capture().is_some();
    if stream.is_default && state()?.streams.all().iter().any(blocks) {
        return Err(Code::STREAM_CAPTURE_IMPLICIT);
    }
    Ok(())
}

/// A graph.
pub struct Graph {
    nodes: Vec<Node>,
}

/// A graph that can be launched.
pub struct GraphExec {
    nodes: Vec<Node>,
}

fn begin(stream: &Arc<Stream>, mode: u32) -> Outcome {
    static NEXT_ID: AtomicU64 = AtomicU64::new(1);
    if mode > RELAXED {
        return Err(Code::INVALID_VALUE);
    }
    if stream.is_default {
        return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
    }
    let mut inner = stream.lock();
    if inner.capture.is_some() {
        return Err(Code::ILLEGAL_STATE);
    }
    let capture = Arc::new(Capture {
        id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        origin: stream.handle,
        mode,
        thread: std::thread::current().id(),
        nodes: Mutex::default(),
        joined: Mutex::default(),
        invalidated: AtomicBool::new(false),
    });
    active().push(capture.clone());
    inner.capture = Some((capture, Vec::new()));
    Ok(())
}

fn end(stream: &Arc<Stream>) -> Outcome<Graph> {
    let Some((capture, ends)) = stream.lock().capture.clone() else { return Err(Code::ILLEGAL_STATE) };
    if capture.origin != stream.handle {
        capture.invalidate();
        return Err(Code::STREAM_CAPTURE_UNMATCHED);
    }
    if capture.mode != RELAXED && capture.thread != std::thread::current().id() {
        return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
    }
    stream.lock().capture = None;
    let joined = std::mem::take(&mut *capture.joined.lock().unwrap_or_else(PoisonError::into_inner));
    for other in joined {
        if let Ok(other) = state()?.streams.get(other) {
            other.lock().capture = None;
        }
    }
    active().retain(|other| other.id != capture.id);
    if capture.status() == 2 {
        return Err(Code::STREAM_CAPTURE_INVALIDATED);
    }
    if !capture.all_before(&ends) {
        return Err(Code::STREAM_CAPTURE_UNJOINED);
    }
    let nodes = capture.lock().clone();
    Ok(Graph { nodes })
}

fn launch(exec: &GraphExec, stream: &Arc<Stream>) -> Outcome {
    let state = state()?;
    if stream.capture().is_some() {
        return Err(Code::NOT_SUPPORTED);
    }
    let start = super::stream::enqueue(stream, &[], Arc::new(|| Ok(())))?;
    let mut tickets: Vec<Ticket> = Vec::with_capacity(exec.nodes.len());
    for node in &exec.nodes {
        let mut after: Vec<Ticket> = node.after.iter().map(|&at| tickets[at]).collect();
        after.push(start);
        tickets.push(state.queue.push(&stream.context, &after, node.work.clone()));
    }
    super::stream::enqueue(stream, &tickets, Arc::new(|| Ok(()))).map(drop)
}

fn capture_info(stream: Handle, status: Out<u32>, id: Out<u64>) -> Outcome {
    let stream = resolve(stream)?;
    check_default(&stream)?;
    match stream.capture() {
        Some(capture) => {
            status.set(capture.status())?;
            id.set_if_wanted(capture.id);
            Ok(())
        }
        None => status.set(0),
    }
}

api! {
    fn cuStreamBeginCapture_v2(stream: Handle, mode: u32) {
        begin(&resolve(stream)?, mode)
    }

    fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) {
        let made = end(&resolve(stream)?);
        match made {
            Ok(made) => graph.set(state()?.graphs.insert_with(|_| made).0),
            Err(code) => {
                graph.set_if_wanted(0);
                Err(code)
            }
        }
    }

    fn cuStreamGetCaptureInfo(stream: Handle, status: Out<u32>, id: Out<u64>) {
        capture_info(stream, status, id)
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: Handle, status: Out<u32>, id: Out<u64>, graph: Out<Handle>, dependencies: Out<usize>, count: Out<usize>
    ) {
        capture_info(stream, status, id)?;
        graph.set_if_wanted(0);
        dependencies.set_if_wanted(0);
        count.set_if_wanted(0);
        Ok(())
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        let new = mode.get()?;
        if new > RELAXED {
            return Err(Code::INVALID_VALUE);
        }
        mode.set(MODE.replace(new))
    }

    fn cuGraphCreate(graph: Out<Handle>, flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        graph.set(state()?.graphs.insert_with(|_| Graph { nodes: Vec::new() }).0)
    }

    fn cuGraphInstantiateWithFlags(exec: Out<Handle>, graph: Handle, _flags: u64) {
        let state = state()?;
        let graph = state.graphs.get(graph)?;
        exec.set(state.graph_execs.insert_with(|_| GraphExec { nodes: graph.nodes.clone() }).0)
    }

    fn cuGraphInstantiate_v2(exec: Out<Handle>, graph: Handle, _node: usize, _log: usize, _bytes: usize) {
        let state = state()?;
        let graph = state.graphs.get(graph)?;
        exec.set(state.graph_execs.insert_with(|_| GraphExec { nodes: graph.nodes.clone() }).0)
    }

    fn cuGraphGetNodes(graph: Handle, nodes: Out<usize>, count: Out<usize>) {
        let graph = state()?.graphs.get(graph)?;
        if nodes.is_null() { count.set(graph.nodes.len()) } else { Err(Code::NOT_SUPPORTED) }
    }

    fn cuGraphUpload(exec: Handle, stream: Handle) {
        resolve(stream)?;
        state()?.graph_execs.get(exec).map(drop)
    }

    fn cuGraphLaunch(exec: Handle, stream: Handle) {
        let stream = resolve(stream)?;
        launch(&*state()?.graph_execs.get(exec)?, &stream)
    }

    fn cuGraphExecDestroy(exec: Handle) {
        state()?.graph_execs.remove(exec).map(drop)
    }

    fn cuGraphDestroy(graph: Handle) {
        state()?.graphs.remove(graph).map(drop)
    }
}
