//! Sequences of several lengths in one call: packed one behind the other, or padded, each side by itself.

mod device;

use crate::case::{Case, TestElement};
use crate::custom::Sequence;
use crate::gpu::Stream;
use crate::placement::Placement;
use crate::run::{CASE_VARIABLE, check_output};
use crate::values::{Inputs, random_bits};
use crate::{Failure, Profile, with_element};
pub use device::RaggedProblem;
use serde::{Deserialize, Serialize};

/// How the sequences of Q and O, or of K and V, lie. `seqused` is passed where rows that belong to nobody follow a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// One behind the other in one batch entry, told apart by `cu_seqlens`, instead of each in a batch entry of its own.
    pub packed: bool,
    /// Of its part of the tensor, each sequence leaves up to so many rows unused.
    pub spare: usize,
    /// Rows before the first and behind the last packed sequence.
    pub margin: usize,
    /// Rows that a batch entry has at least.
    pub capacity: usize,
}

impl Side {
    /// Packed, with nothing between the sequences, or around them.
    pub const PACKED: Self = Self { packed: true, spare: 0, margin: 0, capacity: 0 };
    /// A batch entry each, as long as the longest.
    pub const PADDED: Self = Self { packed: false, ..Self::PACKED };
}

/// Sequences of several lengths.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ragged {
    /// What they have in common. Its batch, lengths and edits are not read; its placements are those of the tensors that hold all sequences.
    pub case: Case,
    /// Queries and keys of each.
    pub lengths: Vec<(usize, usize)>,
    /// Q and O.
    pub q: Side,
    /// K and V.
    pub k: Side,
}

/// Where the sequences of one side are.
#[derive(Clone, Debug, PartialEq)]
pub struct Places {
    /// Batch entry and first row of each sequence.
    pub starts: Vec<(usize, usize)>,
    /// How many rows of each count.
    pub lengths: Vec<usize>,
    /// Batch entries of the tensor, and rows of each.
    pub extents: [usize; 2],
    /// What the device is told of it.
    pub cu_seqlens: Option<Vec<i32>>,
    /// What the device is told of it.
    pub seqused: Option<Vec<i32>>,
}

impl Places {
    fn new(side: Side, lengths: Vec<usize>) -> Self {
        let batch = lengths.len();
        let room: Vec<usize> = lengths.iter().enumerate().map(|(i, len)| len + (5 * i + 3) % (side.spare + 1)).collect();
        let used = || lengths.iter().map(|&len| len as i32).collect();
        if !side.packed {
            let rows = room.iter().copied().max().unwrap_or(0).max(side.capacity);
            let seqused = lengths.iter().any(|&len| len != rows).then(used);
            let starts = (0..batch).map(|entry| (entry, 0)).collect();
            return Self { starts, extents: [batch, rows], cu_seqlens: None, seqused, lengths };
        }
        let mut ends = vec![side.margin];
        room.iter().for_each(|room| ends.push(ends[ends.len() - 1] + room));
        let rows = (ends[batch] + side.margin).max(side.capacity);
        let cu_seqlens = ends.iter().map(|&end| end as i32).collect();
        let seqused = (side.spare > 0).then(used);
        let starts = ends[..batch].iter().map(|&start| (0, start)).collect();
        Self { starts, extents: [1, rows], cu_seqlens: Some(cu_seqlens), seqused, lengths }
    }

    /// Batch entry and row of each row that counts, sequence by sequence.
    pub fn rows(&self) -> impl Iterator<Item = (usize, usize)> {
        self.starts.iter().zip(&self.lengths).flat_map(|(&(entry, start), &len)| (start..start + len).map(move |row| (entry, row)))
    }
}

impl Ragged {
    /// Both sides packed, with nothing between the sequences.
    pub fn new(case: Case, lengths: &[(usize, usize)]) -> Self {
        Self { case, lengths: lengths.to_vec(), q: Side::PACKED, k: Side::PACKED }
    }

    /// With sequences that lie otherwise.
    #[must_use]
    pub fn sides(self, q: Side, k: Side) -> Self {
        Self { q, k, ..self }
    }

    /// Where the queries are.
    pub fn q_places(&self) -> Places {
        Places::new(self.q, self.lengths.iter().map(|lengths| lengths.0).collect())
    }

    /// Where the keys are.
    pub fn k_places(&self) -> Places {
        Places::new(self.k, self.lengths.iter().map(|lengths| lengths.1).collect())
    }

    /// The attention of one sequence alone.
    pub fn sequence(&self, index: usize) -> Case {
        let (seqlen_q, seqlen_k) = self.lengths[index];
        // Whoever is stored once for all has the same numbers for all, as far as each goes.
        let broadcast = [&self.case.q, &self.case.k, &self.case.v].iter().any(|placement| placement.broadcast_batch);
        let seed = if broadcast { self.case.seed } else { random_bits(self.case.seed, index as u64) };
        let stored = |placement: Placement| {
            let broadcast_heads = placement.broadcast_heads && !self.case.packed;
            Placement { broadcast_heads, ..Placement::BSHD }
        };
        let mut features = self.case.features;
        if let Some(custom) = &mut features.custom {
            custom.first_sequence = index;
        }
        let case = Case {
            batch: 1,
            features,
            seqlen_q,
            seqlen_k,
            seed,
            edits: Vec::new(),
            packed: false,
            q: stored(self.case.q),
            k: stored(self.case.k),
            v: stored(self.case.v),
            o: Placement::BSHD,
            ..self.case.clone()
        };
        case.as_general().judging_pairs(Profile::get().judged_pairs() / self.lengths.len().max(1))
    }

    /// All sequences, as functions see them.
    pub(crate) fn sequences(&self) -> Vec<Sequence> {
        let sequence = |(number, &(queries, keys))| Sequence { number, queries, keys };
        self.lengths.iter().enumerate().map(sequence).collect()
    }

    /// Q, K and V of each sequence.
    pub fn draw<T: TestElement>(&self) -> Vec<Inputs<T>> {
        (0..self.lengths.len()).map(|index| Inputs::draw(&self.sequence(index))).collect()
    }

    /// As one line of JSON, which replays it.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|error| format!("{self:?} ({error})"))
    }
}

/// Computes all sequences at once on the current context's device, and judges each.
pub fn check_ragged(ragged: &Ragged) -> Result<(), Failure> {
    check_ragged_on(ragged, &Stream::new()?)
}

/// [`check_ragged`] on a stream.
pub fn check_ragged_on(ragged: &Ragged, stream: &Stream) -> Result<(), Failure> {
    let check = || with_element!(ragged.case.dtype, T => RaggedProblem::<T>::new(ragged, ragged.draw())?.run_and_judge(stream));
    check().map_err(|failure| Failure(format!("{failure}\n  again: {CASE_VARIABLE}='{}'", ragged.text())))
}

impl<T: TestElement> RaggedProblem<T> {
    /// Enqueues, waits, and judges every sequence.
    pub fn run_and_judge(&self, stream: &Stream) -> Result<(), Failure> {
        self.enqueue(stream)?;
        stream.wait(|| self.ragged.text())?;
        self.judge()
    }

    /// Judges every sequence of what the output holds.
    pub fn judge(&self) -> Result<(), Failure> {
        let outputs = self.outputs()?;
        self.check_surroundings()?;
        for (index, output) in outputs.iter().enumerate().filter(|(index, _)| self.ragged.lengths[*index].0 > 0) {
            let judged = check_output(&self.ragged.sequence(index), &self.inputs[index], output);
            judged.map_err(|failure| failure.during(format!("sequence {index}")))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ElementType;

    #[test]
    fn text_replays() {
        let side = Side { spare: 3, margin: 2, ..Side::PACKED };
        let ragged = Ragged::new(Case::new(ElementType::Bf16, 64, 0, 0).window(Some(3), None), &[(0, 3), (5, 7)]).sides(side, Side::PADDED);
        let replayed: Ragged = serde_json::from_str(&ragged.text()).unwrap();
        assert_eq!(replayed, ragged);
    }

    #[test]
    fn packed_sequences_follow_each_other() {
        let side = Side { spare: 3, margin: 2, ..Side::PACKED };
        let places = Places::new(side, vec![4, 0, 1]);
        // Of 3, 0 and 1 spare rows.
        assert_eq!(places.cu_seqlens, Some(vec![2, 9, 9, 11]));
        assert_eq!((places.seqused.clone(), places.extents), (Some(vec![4, 0, 1]), [1, 13]));
        assert_eq!(places.rows().collect::<Vec<_>>(), [(0, 2), (0, 3), (0, 4), (0, 5), (0, 9)]);
        assert_eq!(Places::new(Side::PACKED, vec![4, 0, 1]).seqused, None);
        assert_eq!(Places::new(Side { capacity: 70, ..Side::PACKED }, vec![4, 0, 1]).extents, [1, 70]);
    }

    #[test]
    fn padded_sequences_have_entries_of_their_own() {
        let places = Places::new(Side::PADDED, vec![4, 0, 1]);
        assert_eq!((places.cu_seqlens.clone(), places.seqused.clone(), places.extents), (None, Some(vec![4, 0, 1]), [3, 4]));
        assert_eq!(places.rows().collect::<Vec<_>>(), [(0, 0), (0, 1), (0, 2), (0, 3), (2, 0)]);
        // Nothing to be said of lengths that are all the same.
        assert_eq!(Places::new(Side::PADDED, vec![4, 4]).seqused, None);
    }

    #[test]
    fn what_serves_all_is_drawn_once() {
        let mut case = Case::new(ElementType::F16, 64, 0, 0);
        case.k.broadcast_batch = true;
        let inputs = Ragged::new(case, &[(1, 3), (1, 5)]).sides(Side::PADDED, Side::PADDED).draw::<half::f16>();
        assert_eq!(inputs[0].k, inputs[1].k[..3 * 64]);
    }
}
