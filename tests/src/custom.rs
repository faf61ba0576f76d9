//! The kernels of `tests/kernels`: what their functions are told, in the memory of the device for the kernel and in that of the host for the
//! references.

use crate::call::Call;
use crate::case::{Case, ElementType};
use crate::gpu::{Buffer, Stream};
use crate::values::random_bits;
use crate::{Failure, ensure};
use hopper_attention::reference::{Problem, Row};
use hopper_attention::{ArgsBytes, CustomKernel, Element, Error, raw};
use hopper_attention_kernels::function::{Head, Identity, MaskMod, Open, ScoreMod};
use hopper_attention_test_kernels::{Bias, BiasArgs, Comb, CombArgs, Even, FaultArgs, Faults, Limit, LimitArgs, Prefix, PrefixArgs, Slope};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ptr;
use std::slice;
use std::sync::{Arc, OnceLock};

/// The functions of a test kernel, with what they are told beside arrays.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Function {
    /// head_dims up to 64, f16.
    Comb {
        /// In which a query and the keys that it sees agree.
        bits: u32,
    },
    /// head_dims up to 128, bf16.
    Bias {
        /// From which on the bias stays the same.
        max_distance: u32,
    },
    /// head_dims up to 64 in bf16, up to 256 in f16.
    Prefix {
        /// The kind of bounds.
        bounds: u32,
        /// Of the bias.
        slope: f32,
    },
    /// head_dims up to 64, f16, with 128 keys a step.
    WidePrefix {
        /// The kind of bounds.
        bounds: u32,
        /// Of the bias.
        slope: f32,
    },
    /// head_dims up to 96, f16.
    Even,
    /// head_dims up to 192, bf16.
    Faults {
        /// Whose scores are no ordinary numbers.
        key: u32,
    },
    /// head_dims up to 256, bf16.
    Limit,
}

/// The functions of a case.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Custom {
    /// Which.
    pub function: Function,
    /// The number of the first batch entry among the sequences that the arrays are for.
    pub first_sequence: usize,
}

/// A sequence that arrays are made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sequence {
    /// From which its numbers are drawn.
    pub number: usize,
    pub queries: usize,
    pub keys: usize,
}

impl Case {
    /// The batch entries, as functions see them.
    pub(crate) fn sequences(&self) -> Vec<Sequence> {
        let first = self.features.custom.map_or(0, |custom| custom.first_sequence);
        (first..first + self.batch).map(|number| Sequence { number, queries: self.seqlen_q, keys: self.seqlen_k }).collect()
    }
}

macro_rules! kernels {
    ($($entry:literal)*) => {
        [$(($entry, include_str!(concat!(env!("OUT_DIR"), "/ptx/", $entry, ".ptx")), OnceLock::new())),*]
    };
}

type Entry = (&'static str, &'static str, OnceLock<CustomKernel<ArgsBytes>>);
static KERNELS: [Entry; 8] = kernels!(
    "comb_hdim64_f16" "bias_hdim128_bf16" "prefix_hdim64_bf16" "prefix_hdim64_f16" "prefix_hdim256_f16" "even_hdim96_f16" "faults_hdim192_bf16"
    "limit_hdim256_bf16"
);

/// Where arrays are; null behind the last.
type Pointers = [*const u32; MAX_ARRAYS];
const MAX_ARRAYS: usize = 5;

/// Does something with a kernel's functions, whatever they are.
trait Visitor {
    type Output;

    /// `args` makes the kernel's parameter, of arrays in the memory of the host or of the device.
    fn visit<A: Copy, S: ScoreMod<A>, M: MaskMod<A>>(self, args: impl Fn(Pointers) -> A + Send + Sync + 'static) -> Self::Output;
}

impl Function {
    /// The kernel that has these functions.
    pub fn kernel(self, dtype: ElementType) -> &'static CustomKernel<ArgsBytes> {
        let entry = match (self, dtype) {
            (Self::Comb { .. }, _) => "comb_hdim64_f16",
            (Self::Bias { .. }, _) => "bias_hdim128_bf16",
            (Self::Prefix { .. }, ElementType::Bf16) => "prefix_hdim64_bf16",
            (Self::Prefix { .. }, ElementType::F16) => "prefix_hdim256_f16",
            (Self::WidePrefix { .. }, _) => "prefix_hdim64_f16",
            (Self::Even, _) => "even_hdim96_f16",
            (Self::Faults { .. }, _) => "faults_hdim192_bf16",
            (Self::Limit, _) => "limit_hdim256_bf16",
        };
        let (_, ptx, kernel) = KERNELS.iter().find(|(name, ..)| *name == entry).expect("one of the kernels");
        kernel.get_or_init(|| CustomKernel::from_ptx_untyped(*ptx).expect("what the builder made"))
    }

    /// Its PTX.
    pub fn ptx(self, dtype: ElementType) -> &'static str {
        let entry = self.kernel(dtype).entry();
        KERNELS.iter().find(|(name, ..)| *name == entry).map_or("", |(_, ptx, _)| ptx)
    }

    fn accept<V: Visitor>(self, num_heads: usize, visitor: V) -> V::Output {
        let num_heads = num_heads as u32;
        match self {
            Self::Comb { bits } => visitor.visit::<CombArgs, Identity, Comb>(move |[holes, starts, ..]| CombArgs { holes, starts, bits }),
            Self::Bias { max_distance } => {
                visitor.visit::<BiasArgs, Bias, Open>(move |[of_distance, of_key, of_query, key_starts, query_starts]| BiasArgs {
                    of_distance: of_distance.cast(),
                    of_key: of_key.cast(),
                    of_query: of_query.cast(),
                    key_starts,
                    query_starts,
                    num_heads,
                    max_distance: max_distance as i32,
                })
            }
            Self::Prefix { bounds, slope } | Self::WidePrefix { bounds, slope } => {
                visitor.visit::<PrefixArgs, Slope, Prefix>(move |[first, prefix, ..]| PrefixArgs { first, prefix, bounds, slope })
            }
            Self::Even => visitor.visit::<(), Identity, Even>(|_| ()),
            Self::Limit => {
                visitor.visit::<LimitArgs, Limit, Open>(|[limits, key_starts, ..]| LimitArgs { limits: limits.cast(), key_starts })
            }
            Self::Faults { key } => visitor.visit::<FaultArgs, Faults, Open>(move |_| FaultArgs {
                nothing: 1,
                half: 3,
                nan: 5,
                infinity: 7,
                huge: 9,
                tiny: 11,
                key,
            }),
        }
    }

    /// The arrays, by their bits.
    fn arrays(self, sequences: &[Sequence], num_heads: usize) -> Vec<Vec<u32>> {
        let starts = |length: fn(&Sequence) -> usize| {
            let mut next = 0;
            let start = |sequence: &Sequence| {
                next += length(sequence);
                (next - length(sequence)) as u32
            };
            sequences.iter().map(start).collect::<Vec<u32>>()
        };
        let each = |length: fn(&Sequence) -> usize, seed: u64, number: &dyn Fn(u64) -> u32| {
            let of_sequence = |sequence: &Sequence| {
                let seed = random_bits(seed, sequence.number as u64);
                (0..length(sequence) as u64).map(move |i| number(random_bits(seed, i))).collect::<Vec<u32>>()
            };
            sequences.iter().flat_map(of_sequence).collect::<Vec<u32>>()
        };
        // From -2 to 2, in 256ths: exact in bf16, too.
        let small = |bits: u64| ((bits % 1025) as f32 / 256.0 - 2.0).to_bits();
        match self {
            Self::Comb { .. } => vec![each(|s| s.keys, 11, &|bits| u32::from(bits.is_multiple_of(5))), starts(|s| s.keys)],
            Self::Bias { max_distance } => {
                let rows = sequences
                    .iter()
                    .flat_map(|sequence| (0..num_heads).map(move |head| random_bits(12, (sequence.number * 1000 + head) as u64)));
                let of_distance =
                    rows.flat_map(|seed| (0..2 * u64::from(max_distance) + 1).map(move |i| small(random_bits(seed, i)))).collect();
                vec![of_distance, each(|s| s.keys, 13, &small), each(|s| s.queries, 14, &small), starts(|s| s.keys), starts(|s| s.queries)]
            }
            Self::Prefix { .. } | Self::WidePrefix { .. } => {
                let of = |list: [u32; 6]| sequences.iter().map(|sequence| list[sequence.number % 6]).collect();
                vec![of(FIRST), of(PREFIX)]
            }
            Self::Limit => vec![each(|s| s.keys, 15, &|_| 0.5f32.to_bits()), starts(|s| s.keys)],
            Self::Even | Self::Faults { .. } => Vec::new(),
        }
    }

    /// The same functions on the host.
    pub(crate) fn on_host(self, sequences: &[Sequence], num_heads: usize) -> Functions {
        let largest_term = match self {
            Self::Bias { .. } => 6.0,
            Self::Prefix { slope, .. } | Self::WidePrefix { slope, .. } => {
                let longest = sequences.iter().map(|sequence| sequence.queries.max(sequence.keys)).max();
                f64::from(slope.abs()) * longest.unwrap_or(0) as f64
            }
            _ => 0.0,
        };
        let arrays = Arc::new(self.arrays(sequences, num_heads));
        let lengths = sequences.first().map_or((0, 0), |sequence| (sequence.queries as u32, sequence.keys as u32));
        let (score, mask) = self.accept(num_heads, OnHost { arrays, lengths });
        Functions { function: self, largest_term, score, mask }
    }
}

/// By sequence: the first key that is seen at all, and how many all queries see.
const FIRST: [u32; 6] = [0, 33, 70, 0, 5, 400];
const PREFIX: [u32; 6] = [50, 0, 131, 10_000, 20, 7];

type ScoreFunction = Arc<dyn Fn(f64, Row, usize) -> f64 + Send + Sync>;
type MaskFunction = Arc<dyn Fn(Row, usize) -> bool + Send + Sync>;

/// The functions of a case, for the references.
#[derive(Clone)]
pub struct Functions {
    function: Function,
    /// The largest finite term that the score function adds.
    pub(crate) largest_term: f64,
    score: Option<ScoreFunction>,
    mask: Option<MaskFunction>,
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.function.fmt(f)
    }
}

impl Functions {
    /// Adds them to a problem, as their kernel computes them.
    pub(crate) fn in_problem<'a, T: Element>(&'a self, mut problem: Problem<'a, T>, dtype: ElementType) -> Problem<'a, T> {
        if let Some(score) = &self.score {
            problem = problem.score_function(&**score);
        }
        if let Some(mask) = &self.mask {
            problem = problem.mask_function(&**mask);
        }
        problem.tile_n(self.function.kernel(dtype).tile_n()).expect("a kernel takes a multiple of 16 keys")
    }
}

/// Makes functions that read arrays in the host's memory.
struct OnHost {
    arrays: Arc<Vec<Vec<u32>>>,
    /// Of each sequence.
    lengths: (u32, u32),
}

impl Visitor for OnHost {
    type Output = (Option<ScoreFunction>, Option<MaskFunction>);

    fn visit<A: Copy, S: ScoreMod<A>, M: MaskMod<A>>(self, args: impl Fn(Pointers) -> A + Send + Sync + 'static) -> Self::Output {
        let Self { arrays, lengths: (seqlen_q, seqlen_k) } = self;
        let args = Arc::new(move || args(pointers(arrays.iter().map(|array| array.as_ptr()))));
        let head = move |row: Row| Head { batch_idx: row.batch_idx as u32, head_idx: row.head_idx as u32, seqlen_q, seqlen_k };
        let score: Option<ScoreFunction> = (!S::IS_IDENTITY).then(|| {
            let args = args.clone();
            let score = move |score: f64, row: Row, key: usize| {
                let at = head(row).at(row.position as u32, key as u32);
                // SAFETY: the arrays live as long as this function, and have what the sequences ask for; rows and keys are those of the problem.
                f64::from(unsafe { S::of_head(&args(), head(row)).score(score as f32, at) })
            };
            Arc::new(score) as ScoreFunction
        });
        let mask: Option<MaskFunction> = (!M::IS_OPEN).then(|| {
            let sees = move |row: Row, key: usize| {
                // SAFETY: as above.
                unsafe { M::of_head(&args(), head(row)).sees(head(row).at(row.position as u32, key as u32)) }
            };
            Arc::new(sees) as MaskFunction
        });
        (score, mask)
    }
}

fn pointers(arrays: impl Iterator<Item = *const u32>) -> Pointers {
    let mut pointers = [ptr::null(); MAX_ARRAYS];
    pointers.iter_mut().zip(arrays).for_each(|(pointer, array)| *pointer = array);
    pointers
}

/// The arrays in device memory, each in an allocation that ends with it.
#[derive(Debug)]
pub(crate) struct Tables {
    function: Function,
    num_heads: usize,
    arrays: Vec<(Buffer, Vec<u32>)>,
}

impl Tables {
    pub fn new(function: Function, sequences: &[Sequence], num_heads: usize) -> Result<Self, Failure> {
        let store = |array: Vec<u32>| {
            let memory = Buffer::new(size_of_val(array.as_slice()))?;
            memory.write(0, &array)?;
            Ok((memory, array))
        };
        let arrays = function.arrays(sequences, num_heads).into_iter().map(store).collect::<Result<_, Failure>>()?;
        Ok(Self { function, num_heads, arrays })
    }

    /// For other sequences from now on, where the arrays stay as long as they are.
    pub fn replace(&mut self, sequences: &[Sequence]) -> Result<(), Failure> {
        let arrays = self.function.arrays(sequences, self.num_heads);
        for ((memory, array), new) in self.arrays.iter_mut().zip(arrays) {
            ensure!(array.len() == new.len(), "other sequences need longer arrays");
            memory.write(0, &new)?;
            *array = new;
        }
        Ok(())
    }

    /// How the kernel is called.
    pub fn call(&self, dtype: ElementType) -> CustomCall {
        let mut addresses = [0; MAX_ARRAYS];
        addresses.iter_mut().zip(&self.arrays).for_each(|(address, (memory, _))| *address = memory.address());
        CustomCall { kernel: self.function.kernel(dtype), function: self.function, num_heads: self.num_heads, addresses }
    }

    /// Fails if an array was written to.
    pub fn check_unchanged(&self) -> Result<(), Failure> {
        for (memory, array) in &self.arrays {
            ensure!(memory.read::<u32>(0, array.len())? == *array, "an array of the functions was written to");
        }
        Ok(())
    }
}

/// A kernel of `tests/kernels`, and what it is told.
#[derive(Clone, Copy, Debug)]
pub struct CustomCall {
    /// The kernel.
    pub kernel: &'static CustomKernel<ArgsBytes>,
    /// What makes its parameter.
    pub function: Function,
    num_heads: usize,
    addresses: [u64; MAX_ARRAYS],
}

impl CustomCall {
    /// [`raw::forward_custom`].
    ///
    /// # Safety
    ///
    /// That of [`raw::forward_custom`], unless the call is refused.
    pub unsafe fn enqueue(&self, call: &Call, stream: &Stream) -> Result<(), Error> {
        self.function.accept(self.num_heads, Enqueue { custom: self, call, stream })
    }
}

struct Enqueue<'a> {
    custom: &'a CustomCall,
    call: &'a Call,
    stream: &'a Stream,
}

impl Visitor for Enqueue<'_> {
    type Output = Result<(), Error>;

    fn visit<A: Copy, S: ScoreMod<A>, M: MaskMod<A>>(self, args: impl Fn(Pointers) -> A + Send + Sync + 'static) -> Self::Output {
        let Call { q, k, v, o, lse, options, arrays, .. } = self.call;
        let args = args(self.custom.addresses.map(|address| ptr::without_provenance(address as usize)));
        // SAFETY: those of `args`, which lives until the end.
        let bytes = unsafe { slice::from_raw_parts((&raw const args).cast(), size_of::<A>()) };
        // SAFETY: that the kernel was defined with these functions, and the rest, `CustomCall::enqueue` asks of its caller.
        unsafe { raw::forward_custom(self.custom.kernel, bytes, q, k, v, o, *lse, options, arrays, self.stream.raw()) }
    }
}
