//! Streams and events.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::abi::{Out, call_host, call_stream_callback};
use super::capture::{self, Capture};
use super::error::{Code, Outcome};
use super::queue::{Ticket, Work};
use super::state::*;

const NON_BLOCKING: u32 = 1;
const DISABLE_TIMING: u32 = 2;

/// A stream.
pub struct Stream {
    pub handle: Handle,
    pub id: u64,
    pub context: Arc<Context>,
    pub flags: u32,
    pub priority: i32,
    /// The context's default stream, with which the blocking ones wait for each other.
    pub is_default: bool,
    state: Mutex<StreamState>,
}

#[derive(Default)]
pub struct StreamState {
    /// The last task.
    pub last: Ticket,
    /// Set while the stream is captured: the capture, and the nodes that the next one comes after.
    pub capture: Option<(Arc<Capture>, Vec<usize>)>,
}

impl Stream {
    pub fn lock(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_blocking(&self) -> bool {
        self.flags & NON_BLOCKING == 0
    }

    /// The capture that the stream takes part in.
    pub fn capture(&self) -> Option<Arc<Capture>> {
        self.lock().capture.as_ref().map(|(capture, _)| capture.clone())
    }
}

/// An event.
pub struct Event {
    pub context: Arc<Context>,
    flags: u32,
    state: Mutex<EventState>,
}

#[derive(Default)]
struct EventState {
    ticket: Option<Ticket>,
    time: Arc<Mutex<Option<Instant>>>,
    captured: Option<(Arc<Capture>, Vec<usize>)>,
}

impl Event {
    fn lock(&self) -> MutexGuard<'_, EventState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn new_stream(state: &State, context: Arc<Context>, flags: u32, priority: i32, is_default: bool) -> (Handle, Arc<Stream>) {
    static NEXT_ID: AtomicU64 = AtomicU64::new(1);
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let make = |handle| Stream { handle, id, context, flags, priority, is_default, state: Mutex::default() };
    state.streams.insert_with(make)
}

fn default_stream(state: &State, context: &Arc<Context>) -> Arc<Stream> {
    static MAKING: Mutex<()> = Mutex::new(());
    let _guard = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let known = state.streams.find(|stream| stream.is_default && stream.context.handle == context.handle);
    match known.and_then(|handle| state.streams.get(handle).ok()) {
        Some(stream) => stream,
        None => new_stream(state, context.clone(), 0, 0, true).1,
    }
}

/// The stream of a handle; 0, 1 and 2 are the current context's default stream.
pub fn resolve(handle: Handle) -> Outcome<Arc<Stream>> {
    let state = state()?;
    let current = current()?;
    if handle <= 2 {
        return Ok(default_stream(state, &current));
    }
    let stream = state.streams.get(handle)?;
    match stream.context.error() {
        Some(code) => Err(code),
        None => Ok(stream),
    }
}

/// Puts work on a stream, behind its earlier work and behind `extra`; while the stream is captured, into the graph.
pub fn enqueue(stream: &Arc<Stream>, extra: &[Ticket], work: Work) -> Outcome<Ticket> {
    let state = state()?;
    let mut after = extra.to_vec();
    let others: Vec<Arc<Stream>> =
        state.streams.all().into_iter().filter(|s| s.context.handle == stream.context.handle && s.handle != stream.handle).collect();
    if stream.is_default {
        for other in others.iter().filter(|other| other.is_blocking()) {
            if let Some(capture) = other.capture() {
                capture.invalidate();
                return Err(Code::STREAM_CAPTURE_IMPLICIT);
            }
            after.push(other.lock().last);
        }
    } else if stream.is_blocking() {
        after.extend(others.iter().filter(|other| other.is_default).map(|other| other.lock().last));
    }
    let mut inner = stream.lock();
    if let Some((capture, nodes)) = &mut inner.capture {
        *nodes = vec![capture.add(nodes.clone(), work)?];
        return Ok(0);
    }
    after.push(inner.last);
    inner.last = state.queue.push(&stream.context, &after, work);
    Ok(inner.last)
}

/// Waits for a ticket; an error of the work is this call's.
pub fn wait_for(context: &Context, tickets: &[Ticket]) -> Outcome {
    state()?.queue.wait(tickets);
    context.error().map_or(Ok(()), Err)
}

/// A capture forbids waiting for its streams.
fn refuse_captured(stream: &Stream) -> Outcome {
    match stream.capture() {
        Some(capture) => {
            capture.invalidate();
            Err(Code::STREAM_CAPTURE_UNSUPPORTED)
        }
        None => Ok(()),
    }
}

/// Tickets that a wait for a stream waits for: of the default stream, also those of the blocking ones.
fn tickets_of(state: &State, stream: &Stream) -> Vec<Ticket> {
    let mut tickets = vec![stream.lock().last];
    if stream.is_default {
        let same = |s: &Arc<Stream>| s.context.handle == stream.context.handle && s.is_blocking() && !s.is_default;
        tickets.extend(state.streams.all().iter().filter(|s| same(s)).map(|s| s.lock().last));
    }
    tickets
}

fn record(event: &Event, stream: &Arc<Stream>) -> Outcome {
    if let Some((capture, nodes)) = &stream.lock().capture {
        event.lock().captured = Some((capture.clone(), nodes.clone()));
        return Ok(());
    }
    let time = Arc::new(Mutex::new(None));
    let stamp = time.clone();
    let work = Arc::new(move || {
        *stamp.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        Ok(())
    });
    let ticket = enqueue(stream, &[], work)?;
    *event.lock() = EventState { ticket: Some(ticket), time, captured: None };
    Ok(())
}

fn wait_event(stream: &Arc<Stream>, event: &Event) -> Outcome {
    let (ticket, captured) = {
        let event = event.lock();
        (event.ticket, event.captured.clone())
    };
    let mut inner = stream.lock();
    match (captured, &mut inner.capture) {
        (Some((capture, nodes)), None) => {
            capture.join(stream.handle)?;
            inner.capture = Some((capture, nodes));
            Ok(())
        }
        (Some((theirs, nodes)), Some((ours, after))) => {
            if theirs.id != ours.id {
                ours.invalidate();
                return Err(Code::STREAM_CAPTURE_MERGE);
            }
            after.extend(nodes);
            Ok(())
        }
        (None, Some((ours, _))) if ticket.is_some() => {
            ours.invalidate();
            Err(Code::STREAM_CAPTURE_ISOLATION)
        }
        (None, _) => {
            drop(inner);
            match ticket {
                Some(ticket) => enqueue(stream, &[ticket], Arc::new(|| Ok(()))).map(drop),
                None => Ok(()),
            }
        }
    }
}

fn event_ticket(event: &Event) -> Outcome<Option<Ticket>> {
    let event = event.lock();
    if event.captured.is_some() {
        return Err(Code::CAPTURED_EVENT);
    }
    Ok(event.ticket)
}

api! {
    fn cuStreamCreate(stream: Out<Handle>, flags: u32) {
        if flags > NON_BLOCKING {
            return Err(Code::INVALID_VALUE);
        }
        let context = current()?;
        stream.set(new_stream(state()?, context, flags, 0, false).0)
    }

    fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: u32, priority: i32) {
        if flags > NON_BLOCKING {
            return Err(Code::INVALID_VALUE);
        }
        let context = current()?;
        stream.set(new_stream(state()?, context, flags, priority.clamp(-5, 0), false).0)
    }

    fn cuStreamDestroy_v2(stream: Handle) {
        let state = state()?;
        if stream <= 2 {
            return Err(Code::INVALID_HANDLE);
        }
        let gone = state.streams.remove(stream)?;
        if let Some(capture) = gone.capture() {
            capture.invalidate();
        }
        Ok(())
    }

    fn cuStreamSynchronize(stream: Handle) {
        let stream = resolve(stream)?;
        refuse_captured(&stream)?;
        wait_for(&stream.context, &tickets_of(state()?, &stream))
    }

    fn cuStreamQuery(stream: Handle) {
        let stream = resolve(stream)?;
        refuse_captured(&stream)?;
        let state = state()?;
        let over = tickets_of(state, &stream).iter().all(|&ticket| state.queue.is_over(ticket));
        match stream.context.error() {
            Some(code) => Err(code),
            None if over => Ok(()),
            None => Err(Code::NOT_READY),
        }
    }

    fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: u32) {
        let stream = resolve(stream)?;
        let event = state()?.events.get(event)?;
        wait_event(&stream, &event)
    }

    fn cuStreamGetCtx(stream: Handle, context: Out<Handle>) {
        context.set(resolve(stream)?.context.handle)
    }

    fn cuStreamGetId(stream: Handle, id: Out<u64>) {
        id.set(resolve(stream)?.id)
    }

    fn cuStreamGetFlags(stream: Handle, flags: Out<u32>) {
        flags.set(resolve(stream)?.flags)
    }

    fn cuStreamGetPriority(stream: Handle, priority: Out<i32>) {
        priority.set(resolve(stream)?.priority)
    }

    fn cuLaunchHostFunc(stream: Handle, function: usize, data: usize) {
        let stream = resolve(stream)?;
        let work = Arc::new(move || {
            call_host(function, data);
            Ok(())
        });
        enqueue(&stream, &[], work).map(drop)
    }

    fn cuStreamAddCallback(stream: Handle, function: usize, data: usize, _flags: u32) {
        let handle = stream;
        let stream = resolve(stream)?;
        if stream.capture().is_some() {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        let work = Arc::new(move || {
            call_stream_callback(function, handle, data);
            Ok(())
        });
        enqueue(&stream, &[], work).map(drop)
    }

    fn cuEventCreate(event: Out<Handle>, flags: u32) {
        let context = current()?;
        event.set(state()?.events.insert_with(|_| Event { context, flags, state: Mutex::default() }).0)
    }

    fn cuEventDestroy_v2(event: Handle) {
        state()?.events.remove(event).map(drop)
    }

    fn cuEventRecord(event: Handle, stream: Handle) {
        let stream = resolve(stream)?;
        let event = state()?.events.get(event)?;
        if event.context.handle != stream.context.handle {
            return Err(Code::INVALID_HANDLE);
        }
        record(&event, &stream)
    }

    fn cuEventRecordWithFlags(event: Handle, stream: Handle, _flags: u32) {
        let stream = resolve(stream)?;
        let event = state()?.events.get(event)?;
        record(&event, &stream)
    }

    fn cuEventQuery(event: Handle) {
        let state = state()?;
        let event = state.events.get(event)?;
        let ticket = event_ticket(&event)?;
        match event.context.error() {
            Some(code) => Err(code),
            None if ticket.is_none_or(|ticket| state.queue.is_over(ticket)) => Ok(()),
            None => Err(Code::NOT_READY),
        }
    }

    fn cuEventSynchronize(event: Handle) {
        let event = state()?.events.get(event)?;
        let ticket = event_ticket(&event)?;
        wait_for(&event.context, ticket.as_slice())
    }

    fn cuEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) {
        let state = state()?;
        let (start, end) = (state.events.get(start)?, state.events.get(end)?);
        if (start.flags | end.flags) & DISABLE_TIMING != 0 {
            return Err(Code::INVALID_HANDLE);
        }
        let (Some(first), Some(last)) = (event_ticket(&start)?, event_ticket(&end)?) else { return Err(Code::INVALID_HANDLE) };
        if !state.queue.is_over(first) || !state.queue.is_over(last) {
            return Err(Code::NOT_READY);
        }
        let time = |event: &Event| *event.lock().time.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(from), Some(to)) = (time(&start), time(&end)) else {
            return Err(start.context.error().unwrap_or(Code::INVALID_HANDLE));
        };
        let seconds = if to >= from { (to - from).as_secs_f64() } else { -(from - to).as_secs_f64() };
        milliseconds.set((seconds * 1e3) as f32)
    }

    fn cuStreamIsCapturing(stream: Handle, status: Out<u32>) {
        let stream = resolve(stream)?;
        capture::check_default(&stream)?;
        status.set(stream.capture().map_or(0, |capture| capture.status()))
    }
}
