//! What the driver remembers: devices, contexts, handles, settings.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::capture::{Graph, GraphExec};
use super::error::{Code, Outcome};
use super::module::{Function, Module};
use super::queue::Queue;
use super::stream::{Event, Stream};
use crate::machine::Memory;

/// A handle as C sees it: an opaque pointer that points nowhere.
pub type Handle = usize;

/// A context.
pub struct Context {
    pub handle: Handle,
    pub device: i32,
    pub flags: AtomicU32,
    pub primary: bool,
    error: AtomicU32,
    pub destroyed: AtomicBool,
}

impl Context {
    /// The error that has made the context unusable.
    pub fn error(&self) -> Option<Code> {
        match self.error.load(Ordering::Acquire) {
            0 => None,
            code => Some(Code(code)),
        }
    }

    /// Makes the context unusable; the first error stays.
    pub fn fail(&self, code: Code) {
        let _ = self.error.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// A device's primary context.
#[derive(Default)]
pub struct Primary {
    pub context: Option<Arc<Context>>,
    pub retained: u32,
    pub flags: u32,
}

/// A table of handles of one kind; a handle is never used twice.
pub struct Table<T> {
    entries: Mutex<HashMap<Handle, Arc<T>>>,
    error: Code,
}

impl<T> Table<T> {
    fn new(error: Code) -> Self {
        Self { entries: Mutex::new(HashMap::new()), error }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Handle, Arc<T>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes an entry, which may want to know its handle.
    pub fn insert_with(&self, make: impl FnOnce(Handle) -> T) -> (Handle, Arc<T>) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let handle = 0x0e00_0000_0000 + (NEXT.fetch_add(1, Ordering::Relaxed) as usize) * 64;
        let entry = Arc::new(make(handle));
        self.lock().insert(handle, entry.clone());
        (handle, entry)
    }

    /// The entry of a handle.
    pub fn get(&self, handle: Handle) -> Outcome<Arc<T>> {
        self.lock().get(&handle).cloned().ok_or(self.error)
    }

    /// Removes an entry.
    pub fn remove(&self, handle: Handle) -> Outcome<Arc<T>> {
        self.lock().remove(&handle).ok_or(self.error)
    }

    /// The handle of an entry.
    pub fn find(&self, wanted: impl Fn(&T) -> bool) -> Option<Handle> {
        self.lock().iter().find(|(_, entry)| wanted(entry)).map(|(&handle, _)| handle)
    }

    /// All entries.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.lock().values().cloned().collect()
    }

    /// Removes the entries that `gone` names.
    pub fn retain(&self, keep: impl Fn(&T) -> bool) {
        self.lock().retain(|_, entry| keep(entry));
    }
}

/// Settings, from the environment.
pub struct Settings {
    pub devices: i32,
    pub sm_count: u32,
    pub checks: AtomicBool,
    pub seed: AtomicU64,
    pub threads: usize,
    pub budget: AtomicU64,
}

/// Everything.
pub struct State {
    pub settings: Settings,
    pub memory: Memory,
    pub queue: Queue,
    pub contexts: Table<Context>,
    pub primaries: Mutex<Vec<Primary>>,
    pub modules: Table<Module>,
    pub functions: Table<Function>,
    pub streams: Table<Stream>,
    pub events: Table<Event>,
    pub graphs: Table<Graph>,
    pub graph_execs: Table<GraphExec>,
    pub launches: AtomicU64,
    report: Mutex<String>,
    initialised: AtomicBool,
}

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(default)
}

/// Instructions of warps that a CTA may execute, where no program says otherwise.
pub fn default_budget() -> u64 {
    variable("HOPPER_EMULATOR_BUDGET", 20_000_000_000)
}

impl State {
    fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let checks = variable("HOPPER_EMULATOR_CHECKS", 1) != 0;
        let settings = Settings {
            devices: variable("HOPPER_EMULATOR_DEVICES", 1).min(16) as i32,
            sm_count: variable("HOPPER_EMULATOR_SMS", u64::from(super::device::SM_COUNT)).clamp(1, 1024) as u32,
            checks: AtomicBool::new(checks),
            seed: AtomicU64::new(variable("HOPPER_EMULATOR_SEED", 0)),
            threads: variable("HOPPER_EMULATOR_THREADS", cores as u64).max(1) as usize,
            budget: AtomicU64::new(default_budget()),
        };
        let primaries = (0..settings.devices).map(|_| Primary::default()).collect();
        Self {
            memory: Memory::new(variable("HOPPER_EMULATOR_MEMORY", super::device::TOTAL_MEMORY), checks),
            settings,
            queue: Queue::default(),
            contexts: Table::new(Code::INVALID_CONTEXT),
            primaries: Mutex::new(primaries),
            modules: Table::new(Code::INVALID_HANDLE),
            functions: Table::new(Code::INVALID_HANDLE),
            streams: Table::new(Code::INVALID_HANDLE),
            events: Table::new(Code::INVALID_HANDLE),
            graphs: Table::new(Code::INVALID_VALUE),
            graph_execs: Table::new(Code::INVALID_VALUE),
            launches: AtomicU64::new(1),
            report: Mutex::new(String::new()),
            initialised: AtomicBool::new(false),
        }
    }

    /// Keeps a report for those who ask, and prints it.
    pub fn set_report(&self, text: String) {
        eprintln!("hopper emulator: {text}");
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    /// The last report.
    pub fn report(&self) -> String {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

static STATE: OnceLock<State> = OnceLock::new();

thread_local! {
    static CURRENT: RefCell<Vec<Arc<Context>>> = const { RefCell::new(Vec::new()) };
}

/// The state, whether or not `cuInit` has been called.
pub fn raw_state() -> &'static State {
    STATE.get_or_init(State::new)
}

/// `cuInit`
pub fn initialise() -> Outcome {
    if raw_state().settings.devices == 0 {
        return Err(Code::NO_DEVICE);
    }
    raw_state().initialised.store(true, Ordering::Release);
    Ok(())
}

/// The state, after `cuInit`.
pub fn state() -> Outcome<&'static State> {
    let state = raw_state();
    if state.initialised.load(Ordering::Acquire) { Ok(state) } else { Err(Code::NOT_INITIALIZED) }
}

/// The calling thread's context, usable or not.
pub fn current_or_none() -> Option<Arc<Context>> {
    CURRENT.with_borrow(|stack| stack.last().cloned())
}

/// The calling thread's context, if work can be done in it.
pub fn current() -> Outcome<Arc<Context>> {
    state()?;
    let context = current_or_none().ok_or(Code::INVALID_CONTEXT)?;
    if context.destroyed.load(Ordering::Acquire) {
        return Err(Code::CONTEXT_IS_DESTROYED);
    }
    match context.error() {
        Some(code) => Err(code),
        None => Ok(context),
    }
}

/// Pushes a context.
pub fn push_current(context: Arc<Context>) {
    CURRENT.with_borrow_mut(|stack| stack.push(context));
}

/// Pops the current context.
pub fn pop_current() -> Option<Arc<Context>> {
    CURRENT.with_borrow_mut(Vec::pop)
}

/// Replaces the current context.
pub fn set_current(context: Option<Arc<Context>>) {
    CURRENT.with_borrow_mut(|stack| {
        stack.pop();
        stack.extend(context);
    });
}

/// A new context of a device.
pub fn new_context(state: &State, device: i32, flags: u32, primary: bool) -> Arc<Context> {
    let make = |handle| Context {
        handle,
        device,
        flags: AtomicU32::new(flags),
        primary,
        error: AtomicU32::new(0),
        destroyed: AtomicBool::new(false),
    };
    state.contexts.insert_with(make).1
}

/// Ends a context and everything in it.
pub fn destroy_context(state: &'static State, context: &Arc<Context>) {
    state.queue.wait_all();
    context.destroyed.store(true, Ordering::Release);
    let _ = state.contexts.remove(context.handle);
    state.memory.free_context(context.handle as u64);
    state.streams.retain(|stream| stream.context.handle != context.handle);
    state.events.retain(|event| event.context.handle != context.handle);
    state.modules.retain(|module| module.context.handle != context.handle);
    state.functions.retain(|function| function.module.context.handle != context.handle);
}
