//! The work of all streams: tasks with dependencies, run by one thread in an order that respects them.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::error::Outcome;
use super::state::Context;

/// Work that can be done more than once (a graph is launched again and again).
pub type Work = Arc<dyn Fn() -> Outcome + Send + Sync>;

/// Number of a task; 0 is none.
pub type Ticket = u64;

struct Task {
    ticket: Ticket,
    after: Vec<Ticket>,
    context: Arc<Context>,
    work: Work,
}

#[derive(Default)]
struct State {
    tasks: Vec<Task>,
    unfinished: HashSet<Ticket>,
    last: Ticket,
    running: bool,
}

/// The queue.
#[derive(Default)]
pub struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a task that runs after others.
    pub fn push(&'static self, context: &Arc<Context>, after: &[Ticket], work: Work) -> Ticket {
        let mut state = self.lock();
        state.last += 1;
        let ticket = state.last;
        let after = after.iter().copied().filter(|ticket| state.unfinished.contains(ticket)).collect();
        state.unfinished.insert(ticket);
        state.tasks.push(Task { ticket, after, context: context.clone(), work });
        if !state.running {
            state.running = true;
            std::thread::spawn(|| self.run());
        }
        self.changed.notify_all();
        ticket
    }

    fn run(&self) {
        let mut state = self.lock();
        loop {
            let ready = state.tasks.iter().position(|task| !task.after.iter().any(|ticket| state.unfinished.contains(ticket)));
            let Some(at) = ready else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let task = state.tasks.remove(at);
            drop(state);
            // Work behind a failed launch is dropped, as on a device.
            if task.context.error().is_none()
                && let Err(code) = (task.work)()
            {
                task.context.fail(code);
            }
            state = self.lock();
            state.unfinished.remove(&task.ticket);
            self.changed.notify_all();
        }
    }

    /// Whether a task is over.
    pub fn is_over(&self, ticket: Ticket) -> bool {
        !self.lock().unfinished.contains(&ticket)
    }

    /// Waits for tasks.
    pub fn wait(&self, tickets: &[Ticket]) {
        let mut state = self.lock();
        while tickets.iter().any(|ticket| state.unfinished.contains(ticket)) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for everything.
    pub fn wait_all(&self) {
        let tickets: Vec<Ticket> = self.lock().unfinished.iter().copied().collect();
        self.wait(&tickets);
    }
}
