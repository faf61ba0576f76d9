//! The math warpgroups, 64 query rows each (FlashAttention-3, Algorithm 2; turns at the tensor cores: its section 3.1).
//!
//! ```text
//! for tile in schedule {                            visited key tiles of the CTA, of which this warpgroup's rows see own
//!   wait Q
//!   for n in visited-1..=own {                      skip_step: under the mask only
//!     wait K[n];  release it;  a turn;  wait V[n];  release it
//!   }
//!   wait K[own-1];  S = Q K[own-1]^T;  release it;  P = softmax of mask S          first_step
//!   for n in own-2..=0 {                            step
//!     wait K[n];  take the turn;  start S = Q K[n]^T;  wait V[n+1];  start O += P V[n+1];  pass the turn
//!     wait S;  release K[n];  mask S where the tile needs it
//!     wait O;  release V[n+1];  P = online softmax of S, which rescales O where it must
//!   }
//!   wait V[0];  O += P V[0];  release it;  store O and LSE          last_product, epilogue
//!   release Q once the copy of O has read its place: now, or with two Q stages in the next tile
//! }
//! ```
//!
//! A general kernel's rows may also see keys from a later one on: its steps are `Consumer::steps_in_range`, and the tiles behind those that the
//! warpgroup sees are passed over like those before them. Kernels in which one step serves masked key tiles and others (`TileConfig::one_step`)
//! go the same way.

use super::score;
use super::sequence::{RowTile, pack_log2, warpgroup_queries};
use super::softmax::Softmax;
use super::tiles::TileReader;
use super::{Cta, Kernel, epilogue, key_range, mask::mask, named_barrier};
use crate::config::WARPGROUP_THREADS;
use crate::function::{Head, MaskMod, ScoreMod};
use crate::key_range::KeyRange;
use crate::layout::descriptor::{self, SWIZZLE_ATOM_BYTES};
use crate::layout::fragment::{self, ROW_STEP, ROWS_PER_THREAD};
use crate::layout::smem::{Q_PANEL_BYTES, SmemLayout, kv_panel_bytes};
use crate::layout::swizzle::ROW_BYTES;
use crate::pipeline::{PipelineState, Ring};
use crate::ptx::wgmma::{self, Accumulator};
use crate::ptx::{barrier, register, tma, warp};

/// One math warpgroup, as each of its threads sees it.
pub(super) struct Consumer<'a, K: Kernel> {
    pub(super) cta: &'a Cta<'a, K::Args>,
    q_ring: Ring,
    pub(super) warpgroup_idx: u32,
    pub(super) warp_in_group: u32,
    pub(super) lane_idx: u32,
    q_state: PipelineState,
    k_state: PipelineState,
    v_state: PipelineState,
    kernel: core::marker::PhantomData<K>,
}

/// A row tile on its way: P of the last key tile, and O of those before it.
pub(super) struct Work<K: Kernel> {
    pub(super) tile: RowTile,
    /// First query of the warpgroup; see [`Consumer::first_row`].
    first_row: u32,
    /// The query of this thread's first row; not read where [`Consumer::queries`] computes it anew.
    row: u32,
    pub(super) softmax: Softmax,
    pub(super) acc_o: K::Output,
    p: <K::Scores as Accumulator>::Packed,
    score: K::Score,
}

impl<'a, K: Kernel> Consumer<'a, K> {
    #[inline(always)]
    pub(super) fn new(cta: &'a Cta<'a, K::Args>, warpgroup_idx: u32, warp_in_group: u32, lane_idx: u32) -> Self {
        Self {
            cta,
            q_ring: cta.q_ring::<K>(warpgroup_idx),
            warpgroup_idx,
            warp_in_group,
            lane_idx,
            q_state: PipelineState::START,
            k_state: PipelineState::START,
            v_state: PipelineState::START,
            kernel: core::marker::PhantomData,
        }
    }

    /// The ring of this warpgroup's Q; a general kernel has no register to keep its address in.
    #[inline(always)]
    fn q_ring(&self) -> Ring {
        if K::GENERAL {
            let smem = SmemLayout::new(K::TILE, register::unknown_shared(self.cta.smem.q));
            Ring::new(smem.q_ring(self.warpgroup_idx), K::TILE.q_stages)
        } else {
            self.q_ring
        }
    }

    /// The stage of this tile's Q.
    #[inline(always)]
    pub(super) fn q_stage(&self) -> u32 {
        self.q_state.stage
    }

    /// Computes all tiles of this CTA.
    ///
    /// # Safety
    /// By the whole warpgroup, converged; the producers walk the same tiles.
    #[inline(always)]
    pub(super) unsafe fn run(&mut self) {
        // SAFETY: scope: the whole warpgroup, as promised. The loops branch on what all its threads agree on. Where lanes may part, in the
        // waits for an mbarrier and in lane 0's arrivals, ptxas lets them meet again at once, as every kernel with an aligned instruction
        // behind such a wait relies on; behind functions of a user's own warp::sync and warp::broadcast make them meet. What the memory model
        // asks of a warp is said by warp::sync. Protocol: tiles are asked for until there is none, and the arrival makes the one turn that goes
        // round (take_turn).
        unsafe {
            if self.warpgroup_idx == 0 {
                // The first turn is warpgroup 0's.
                barrier::arrive(named_barrier::TURN, 2 * WARPGROUP_THREADS);
            }
            let mut tiles = TileReader::new();
            let mut is_first = true;
            while let Some(tile) = tiles.next::<K>(self.cta, |rank| agree(rank), self.lane_idx) {
                self.compute_tile(tile, is_first);
                self.q_state.advance(K::TILE.q_stages);
                is_first = false;
            }
        }
    }

    /// Computes one row tile and stores it.
    ///
    /// # Safety
    /// As [`Consumer::run`].
    #[inline(always)]
    unsafe fn compute_tile(&mut self, tile: RowTile, is_first: bool) {
        let first_row = tile.first_row::<K>() + self.warpgroup_idx * warpgroup_queries::<K>(self.cta);
        let mut work = Work::<K> {
            tile,
            first_row,
            row: first_row + fragment::first_row(self.warp_in_group, self.lane_idx),
            softmax: Softmax::EMPTY,
            acc_o: K::Output::ZERO,
            p: K::Scores::PACKED_ZERO,
            // SAFETY: the arguments are as the launch promises.
            score: unsafe { K::Score::of_head(self.cta.args, self.head(&tile)) },
        };
        // The CTA's key tiles, all of which come through the rings, and those that this warpgroup's rows see. Without a mask the two are
        // equal, but for warpgroups beyond the last row, which then compute what is never stored.
        // SAFETY: scope: the whole warp, as promised.
        let (visited, own) = unsafe { self.key_ranges(&tile) };
        // SAFETY: scope: the whole warpgroup, as promised. Protocol: producers and consumers agree on the tiles, so every stage that is waited
        // for is filled, and every one that is filled is released, in the order of filling.
        unsafe {
            self.q_ring().consumer_wait(self.q_state);
            let mut n_block = visited.end;
            while (K::TILE.causal || K::GENERAL) && n_block > own.end.max(visited.begin) {
                n_block -= 1;
                // A row tile takes one turn less than it has key tiles.
                self.skip_step(n_block > visited.begin);
            }
            if n_block == visited.begin {
                self.release_previous_q(is_first);
            } else if K::GENERAL || K::TILE.one_step() {
                self.steps_in_range(&mut work, &own, n_block, is_first);
            } else {
                n_block -= 1;
                self.first_step(&mut work, n_block, own.keys_end, is_first);
                while K::TILE.causal && n_block > own.unmasked_end {
                    n_block -= 1;
                    self.step::<true>(&mut work, n_block, true);
                }
                while n_block > 0 {
                    n_block -= 1;
                    self.step::<false>(&mut work, n_block, false);
                }
                self.last_product(&mut work);
            }
            epilogue::store::<K>(self, &work);
            if K::TILE.q_stages == 1 {
                self.release_q(self.q_state);
            }
        }
    }

    /// The key tiles of a row tile that the CTA visits, and those that this warpgroup's rows see.
    ///
    /// # Safety
    /// All lanes of the warp are converged.
    #[inline(always)]
    unsafe fn key_ranges(&self, tile: &RowTile) -> (KeyRange, KeyRange) {
        // What lies in shared memory the compiler does not know to agree.
        // SAFETY: scope: as promised.
        let uniform = |word| if K::GENERAL { unsafe { warp::broadcast(word) } } else { word };
        let (seqlen_q, seqlen_k) = (uniform(tile.seqlen_q::<K>(self.cta)), uniform(tile.seqlen_k::<K>(self.cta)));
        let first_row = uniform(tile.first_row::<K>());
        let rows = warpgroup_queries::<K>(self.cta);
        let visited = key_range::<K>(self.cta, tile, first_row, K::TILE.math_warpgroups() * rows, seqlen_q, seqlen_k);
        let own = key_range::<K>(self.cta, tile, first_row + self.warpgroup_idx * rows, rows, seqlen_q, seqlen_k);
        if K::Mask::IS_OPEN {
            return (visited, own);
        }
        // A mask function may have its bounds from memory, and may say more of few rows than of many.
        let agreed = |range: KeyRange| KeyRange {
            begin: uniform(range.begin),
            end: uniform(range.end),
            unmasked_begin: uniform(range.unmasked_begin),
            unmasked_end: uniform(range.unmasked_end),
            keys_end: uniform(range.keys_end),
        };
        (agreed(visited), agreed(own.within(visited)))
    }

    /// First query of the warpgroup; a general kernel has no register to keep it in.
    #[inline(always)]
    pub(super) fn first_row(&self, work: &Work<K>) -> u32 {
        if K::GENERAL { work.tile.first_row::<K>() + self.warpgroup_idx * warpgroup_queries::<K>(self.cta) } else { work.first_row }
    }

    /// The queries of this thread's rows; computed anew in general kernels and in those of one step, of which that of head_dim 256 has no register to
    /// keep them in.
    #[inline(always)]
    pub(super) fn queries(&self, work: &Work<K>) -> [u32; ROWS_PER_THREAD] {
        if K::GENERAL || K::TILE.one_step() {
            let (first_row, pack_log2) = (work.tile.first_row::<K>(), pack_log2::<K>(self.cta));
            self.tile_rows().map(|row| first_row + (row >> pack_log2))
        } else {
            [work.row, work.row + ROW_STEP]
        }
    }

    /// This thread's rows within the row tile.
    #[inline(always)]
    pub(super) fn tile_rows(&self) -> [u32; ROWS_PER_THREAD] {
        let row = fragment::first_row(4 * self.warpgroup_idx + self.warp_in_group, self.lane_idx);
        [row, row + ROW_STEP]
    }

    /// The key tiles that this warpgroup's rows see, from the one before `n_block` down, of which any may need a mask, and those after them that only
    /// other warpgroups' rows see.
    ///
    /// # Safety
    /// As [`Consumer::run`].
    #[inline(always)]
    unsafe fn steps_in_range(&mut self, work: &mut Work<K>, own: &KeyRange, n_block: u32, is_first: bool) {
        let mut n_block = n_block - 1;
        // SAFETY: scope and protocol: as promised.
        unsafe {
            self.first_step(work, n_block, own.keys_end, is_first);
            while n_block > own.begin {
                n_block -= 1;
                let is_whole = n_block >= own.unmasked_begin && n_block < own.unmasked_end;
                if K::TILE.one_step() {
                    // A vote, of which ptxas knows that all lanes agree: around a branch that may diverge it would serialise the products (C7519).
                    self.step::<true>(work, n_block, warp::any(!is_whole));
                } else if is_whole {
                    self.step::<false>(work, n_block, false);
                } else {
                    self.step::<true>(work, n_block, true);
                }
            }
            self.last_product(work);
            let (visited, _) = self.key_ranges(&work.tile);
            while n_block > visited.begin {
                n_block -= 1;
                self.skip_step(true);
            }
        }
    }

    /// A key tile that other warpgroups of the CTA see, and this one does not: gives the stages back, and the turn that a step would take.
    ///
    /// # Safety
    /// As [`Consumer::run`].
    #[inline(always)]
    unsafe fn skip_step(&mut self, takes_turn: bool) {
        // SAFETY: scope: as promised. Protocol: a stage is released only once it is full: sooner, the arrival might count for the stage's last
        // round. Lane 0 releases it once all lanes have seen it full: later they might see the phase after the next. Nothing has read it.
        unsafe {
            self.cta.k_ring::<K>().consumer_wait(self.k_state);
            warp::sync();
            self.cta.k_ring::<K>().consumer_release(self.k_state, self.lane_idx);
            self.k_state.advance(K::TILE.kv_stages());
            if takes_turn {
                self.take_turn();
                self.pass_turn();
            }
            self.cta.v_ring::<K>().consumer_wait(self.v_state);
            warp::sync();
            self.cta.v_ring::<K>().consumer_release(self.v_state, self.lane_idx);
            self.v_state.advance(K::TILE.kv_stages());
        }
    }

    /// The last key tile, which is visited first: S, softmax, P. O is still 0. The rows see no key from `keys_end` on.
    ///
    /// # Safety
    /// As [`Consumer::run`].
    #[inline(always)]
    unsafe fn first_step(&mut self, work: &mut Work<K>, n_block: u32, keys_end: u32, is_first: bool) {
        // SAFETY: scope: as promised; all threads agree on `only_half`, as on `keys_end` (`key_ranges`). Protocol: K's stage is full, and
        // released behind the wait for the product that reads it. Lifetime: acc_s is touched behind that wait only.
        unsafe {
            self.cta.k_ring::<K>().consumer_wait(self.k_state);
            let mut acc_s = self.start_scores();
            wgmma::wait_group::<0>();
            acc_s.pin();
            self.cta.k_ring::<K>().consumer_release(self.k_state, self.lane_idx);
            self.k_state.advance(K::TILE.kv_stages());
            self.release_previous_q(is_first);
            self.apply_score::<true>(work, &mut acc_s, n_block);
            let only_half = K::TILE.looks_for_half() && keys_end <= n_block * K::TILE.tile_n + K::TILE.tile_n / 2;
            mask::<K>(&mut acc_s, self.cta, &work.tile, n_block, self.queries(work), self.lane_idx);
            work.softmax.begin::<K>(&mut acc_s, &mut work.p, self.cta.params.softmax_scale_log2, only_half);
        }
    }

    /// One more key tile: its S runs beside the product of the tile before it; while its softmax is computed, the tensor cores are the other
    /// warpgroups'. Where it is not `MASKABLE` there is no code for a mask. (A constant `needs_mask` alone would not do: LLVM merges two calls
    /// that differ only in a constant.)
    ///
    /// # Safety
    /// As [`Consumer::run`].
    #[inline(always)]
    unsafe fn step<const MASKABLE: bool>(&mut self, work: &mut Work<K>, n_block: u32, needs_mask: bool) {
        // SAFETY: scope: as promised. Protocol: both stages are full, and each is released behind the wait for the products that read it.
        // Lifetime: two groups are under way, S and then O; acc_s is touched behind the wait that leaves one, acc_o and p behind the
        // wait for both.
        unsafe {
            self.cta.k_ring::<K>().consumer_wait(self.k_state);
            self.take_turn();
            let mut acc_s = self.start_scores();
            self.cta.v_ring::<K>().consumer_wait(self.v_state);
            self.start_output(work);
            self.pass_turn();

            wgmma::wait_group::<1>();
            acc_s.pin();
            self.cta.k_ring::<K>().consumer_release(self.k_state, self.lane_idx);
            self.k_state.advance(K::TILE.kv_stages());
            // A function of the score alone needs no second copy. (No key here is behind the last one: those are in the first step's tile.)
            if MASKABLE && needs_mask && !K::Score::IS_OF_SCORE_ALONE {
                self.apply_score::<true>(work, &mut acc_s, n_block);
            } else {
                self.apply_score::<false>(work, &mut acc_s, n_block);
            }
            if MASKABLE && needs_mask {
                mask::<K>(&mut acc_s, self.cta, &work.tile, n_block, self.queries(work), self.lane_idx);
            }
            wgmma::wait_group::<0>();
            work.acc_o.pin();
            self.cta.v_ring::<K>().consumer_release(self.v_state, self.lane_idx);
            self.v_state.advance(K::TILE.kv_stages());
            work.softmax.update::<K>(&mut acc_s, &mut work.p, &mut work.acc_o, self.cta.params.softmax_scale_log2);
        }
    }

    /// O += P V for the first key tile, which is visited last.
    ///
    /// # Safety
    /// As [`Consumer::run`].
    #[inline(always)]
    unsafe fn last_product(&mut self, work: &mut Work<K>) {
        // SAFETY: scope: as promised. Protocol: V's stage is full, and released behind the wait for the product that reads it. Lifetime: acc_o
        // and p are touched behind that wait only.
        unsafe {
            self.cta.v_ring::<K>().consumer_wait(self.v_state);
            wgmma::fence();
            self.start_output(work);
            wgmma::wait_group::<0>();
            work.acc_o.pin();
            self.cta.v_ring::<K>().consumer_release(self.v_state, self.lane_idx);
            self.v_state.advance(K::TILE.kv_stages());
        }
    }

    /// What the score function is told of the tile's head: nothing, where it does not look.
    #[inline(always)]
    fn head(&self, tile: &RowTile) -> Head {
        if K::GENERAL && K::Score::IS_IDENTITY { Head::ANY } else { tile.head::<K>(self.cta) }
    }

    /// The score function, before any mask.
    ///
    /// # Safety
    /// As [`Consumer::run`].
    #[inline(always)]
    unsafe fn apply_score<const MASKED: bool>(&self, work: &Work<K>, acc_s: &mut K::Scores, n_block: u32) {
        if !K::Score::IS_IDENTITY {
            // SAFETY: scope: as promised.
            unsafe { score::apply::<K, MASKED>(self.cta, work.score, acc_s, &work.tile, n_block, self.queries(work)[0], self.lane_idx) };
        }
    }

    /// Where the tiles are; a general kernel, and one for unequal head dims, has no registers to keep each address in.
    #[inline(always)]
    fn smem(&self) -> SmemLayout {
        let is_short = K::GENERAL || K::TILE.head_dim != K::TILE.head_dim_v;
        if is_short && K::TILE.q_stages == 1 { SmemLayout::new(K::TILE, register::unknown_shared(self.cta.smem.q)) } else { self.cta.smem }
    }

    /// Starts S = Q K^T on the current K stage.
    ///
    /// # Safety
    /// As [`Consumer::run`]; Q and the K stage are full and stay so, and the result is untouched, until the wait.
    #[inline(always)]
    unsafe fn start_scores(&self) -> K::Scores {
        let smem = self.smem();
        // Both operands are K-major: the leading offset is not used.
        let q = descriptor::swizzled_128b(smem.q_block(K::TILE, self.q_state.stage, self.warpgroup_idx), 16);
        let k = descriptor::swizzled_128b(smem.k + self.k_state.stage * K::TILE.k_bytes(), 16);
        // SAFETY: scope, lifetime: as promised. Address: steps of 16 columns are 32 bytes within a panel row of 128, and panels begin on 1024
        // bytes. Proxy: TMA wrote both operands, and their mbarriers were waited for, so they need no fence; the registers have theirs.
        unsafe {
            wgmma::fence();
            let mut acc_s = K::Scores::multiply(K::DTYPE, q, k);
            for step in 1..K::TILE.head_dim / 16 {
                let (panel, in_panel) = (step / 4, step % 4 * 32);
                let q_step = q + descriptor::advance(panel * Q_PANEL_BYTES + in_panel);
                let k_step = k + descriptor::advance(panel * kv_panel_bytes(K::TILE) + in_panel);
                acc_s.multiply_add(K::DTYPE, q_step, k_step);
            }
            wgmma::commit_group();
            acc_s
        }
    }

    /// Starts O += P V on the current V stage.
    ///
    /// # Safety
    /// As [`Consumer::run`]; the V stage is full and stays so, and `work.acc_o` and `work.p` are untouched, until the wait. They are untouched
    /// since the last [`wgmma::fence`], too.
    #[inline(always)]
    unsafe fn start_output(&self, work: &mut Work<K>) {
        let stage = self.smem().v + self.v_state.stage * K::TILE.v_bytes();
        let v = descriptor::swizzled_128b(stage, kv_panel_bytes(K::TILE));
        const { assert!((16 * ROW_BYTES).is_multiple_of(SWIZZLE_ATOM_BYTES)) };
        // SAFETY: scope, lifetime: as promised. Address: steps of 16 keys are 16 panel rows, whole atoms of the swizzle. Proxy: TMA wrote V, and
        // its mbarrier was waited for; the registers' fence is the caller's.
        unsafe {
            for step in 0..K::TILE.tile_n / 16 {
                let p = |i| work.p[4 * step as usize + i];
                let a = [p(0), p(1), p(2), p(3)];
                work.acc_o.multiply_add_from_registers(K::DTYPE, a, v + descriptor::advance(step * 16 * ROW_BYTES));
            }
            wgmma::commit_group();
        }
    }

    /// Waits for this warpgroup's turn at the tensor cores.
    ///
    /// # Safety
    /// As [`Consumer::run`].
    #[inline(always)]
    unsafe fn take_turn(&self) {
        // SAFETY: scope: as promised. Protocol: 128 threads wait here, and the 128 before them in the round arrive in pass_turn (for the very
        // first turn, this warpgroup itself in `run`). There is one turn, and who passes it on gets it back only from behind this wait, so no
        // barrier meets a second arrival before its wait.
        unsafe { barrier::sync(named_barrier::TURN + self.warpgroup_idx, 2 * WARPGROUP_THREADS) }
    }

    /// Gives the turn to the next warpgroup.
    ///
    /// # Safety
    /// As [`Consumer::run`].
    #[inline(always)]
    unsafe fn pass_turn(&self) {
        let next = if self.warpgroup_idx + 1 == K::TILE.math_warpgroups() { 0 } else { self.warpgroup_idx + 1 };
        // SAFETY: scope: as promised. Protocol: as in take_turn; all math warpgroups take the same number of turns, so every wait has its
        // arrival. The last one of all is left over.
        unsafe { barrier::arrive(named_barrier::TURN + next, 2 * WARPGROUP_THREADS) }
    }

    /// With two Q stages: once this tile is under way, the last tile's O has left its place, which is free for the next Q.
    ///
    /// # Safety
    /// As [`Consumer::run`].
    #[inline(always)]
    unsafe fn release_previous_q(&self, is_first: bool) {
        if K::TILE.q_stages == 2 && !is_first {
            let mut previous = self.q_state;
            previous.stage ^= 1;
            // SAFETY: scope: as promised. The warpgroup's only store that may still be reading is that of the last tile, from this stage.
            unsafe { self.release_q(previous) }
        }
    }

    /// Gives a Q stage back, once the store of O has read it.
    ///
    /// # Safety
    /// As [`Consumer::run`]; the store was started by this warpgroup, whose reads of Q are complete.
    #[inline(always)]
    unsafe fn release_q(&self, state: PipelineState) {
        // A general kernel has no register to keep it in.
        let warp_in_group = if K::GENERAL { register::thread_idx() / 32 % 4 } else { self.warp_in_group };
        if warp_in_group == 0 {
            // SAFETY: scope: lane 0 of warp 0 started the store; the other lanes have no bulk group to wait for. Protocol: the warpgroup's one
            // arrival for this stage. Proxy: the next to write there is TMA; the ordinary writes of O came before the store, behind a fence.
            unsafe {
                tma::wait_group_read();
                self.q_ring().consumer_release(state, self.lane_idx);
            }
        }
    }
}

/// Lane 0's rank of a tile in every lane, which the compiler thereby knows to agree, once all lanes have loaded it.
///
/// # Safety
/// All lanes of the warp are converged.
#[inline(always)]
unsafe fn agree(rank: u32) -> u32 {
    // SAFETY: scope: all lanes, as promised.
    unsafe {
        warp::sync();
        warp::broadcast(rank)
    }
}
