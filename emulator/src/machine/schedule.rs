//! When asynchronous operations finish and how warps interleave: a function of a seed.

/// How a launch is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Schedule {
    /// 0: warps run until they wait, asynchronous operations finish as late as they can. Otherwise everything is drawn.
    pub seed: u64,
}

/// Draws of one CTA (xorshift64*).
#[derive(Clone, Debug)]
pub struct Draws {
    state: u64,
    random: bool,
}

impl Draws {
    /// The draws of CTA number `cta`.
    pub fn new(schedule: Schedule, cta: u64) -> Self {
        let mixed = schedule.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (cta + 1).wrapping_mul(0xd1b5_4a32_d192_ed03);
        let mut draws = Self { state: mixed | 1, random: schedule.seed != 0 };
        for _ in 0..4 {
            draws.next();
        }
        draws
    }

    fn next(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `n`; 0 in the fixed schedule.
    pub fn below(&mut self, n: usize) -> usize {
        if self.random && n > 1 { ((self.next() >> 33) as usize) % n } else { 0 }
    }

    /// Instructions that a group runs before another gets its turn.
    pub fn slice(&mut self) -> u32 {
        if !self.random {
            return 20_000;
        }
        // Mostly short, sometimes long: both extremes find faults.
        match self.below(4) {
            0 => 1 + self.below(8) as u32,
            1 => 1 + self.below(64) as u32,
            2 => 1 + self.below(512) as u32,
            _ => 5000,
        }
    }

    /// Whether an unfinished `mbarrier.try_wait` returns false: it waits up to a time that the system chooses (PTX ISA), and a program may not
    /// take it for longer. In the fixed schedule each warp's `first` at each place does.
    pub fn give_up(&mut self, first: bool) -> bool {
        if self.random { self.below(4) == 0 } else { first }
    }

    /// Whether an asynchronous operation finishes now although nobody has to wait for it yet.
    pub fn finish_early(&mut self) -> bool {
        self.random && self.below(3) == 0
    }
}
