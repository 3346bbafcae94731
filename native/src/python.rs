//! The module as Python sees it: the names, arguments and errors of `halfmoon.columns`.
//!
//! Only the columns of Arrow are made without the interpreter: a turn's work takes microseconds, and another thread would cost more
//! than it brings.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashSet;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyIndexError, PyKeyError, PyUnicodeDecodeError, PyValueError, PyZeroDivisionError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBool, PyBytes, PyDict, PyList, PyMemoryView, PySequence, PySlice, PyString, PyTuple, PyType};

use crate::answers::{self, Form, Pulled};
use crate::batch;
use crate::checking;
use crate::completions;
use crate::filtering::{self, Area, Names, Node, Number, Room, Search, Sign, Texts, is_mended};
use crate::frames::{self, Rest};
use crate::headers;
use crate::keys::{self, Bytes};
use crate::messages::{self as columns, Illegal, Numbers, Sender, Source, Target};
use crate::properties;
use crate::reader;
use crate::record::{self, Wanted};
use crate::requests::{Frame as RequestFrame, Head};
use crate::rows;
use crate::signing;
use crate::states;

pyo3::import_exception!(halfmoon.errors, MessageIllegal);

/// Both twins of one interface have the same functions with the same meanings; it grows when one changes.
const INTERFACE: i64 = 30;

/// Buffers of columns begin at multiples of this.
const ALIGNED: usize = 64;

/// Conditions within conditions of an expression that are looked at.
const DEPTH_MAX: usize = 64;

/// The number of slices up to which slicing one by one is the cheapest.
const RUNS_FEW: usize = 4;

/// The number of bytes copied at once to look at some, where others may write.
const PAGE_BYTES: usize = 4096;

impl From<Illegal> for PyErr {
    fn from(illegal: Illegal) -> Self {
        MessageIllegal::new_err(illegal.0)
    }
}

type Frame = (u8, usize, usize, usize);
type Found = (Vec<Frame>, usize, usize, Option<String>);
type SenderFields = (i64, i32, i64, i64, usize);

fn fields(frame: frames::Frame) -> Frame {
    (frame.serialization, frame.start, frame.body, frame.end)
}

fn found(others: Vec<Frame>, rest: Rest) -> Found {
    (others, rest.used, rest.wanted, rest.wrong)
}

// ---------------------------------------------------------------- messages

/// Messages of one queue in the order they came, and who sent them.
#[pyclass(module = "halfmoon_native")]
#[derive(Default)]
struct Messages {
    inner: columns::Messages,
}

/// Read a number that may have more than 64 bits; those have no place in any record.
fn number(value: &Bound<'_, PyAny>, fits: &mut bool) -> PyResult<i64> {
    value.extract().or_else(|error: PyErr| {
        *fits = false;
        if error.is_instance_of::<pyo3::exceptions::PyOverflowError>(value.py()) { Ok(i64::MAX) } else { Err(error) }
    })
}

type DraftFields<'py> = (
    PyBackedBytes,
    PyBackedBytes,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    PyBackedBytes,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
);

fn add(messages: &mut columns::Messages, draft: &Bound<'_, PyAny>) -> PyResult<()> {
    let (body, text, flag, sys_flag, born_ms, host, reconsume, prepared, code): DraftFields<'_> = draft.extract()?;
    let (mut fits, mut code_fits) = (true, true);
    let numbers = Numbers {
        flag: number(&flag, &mut fits)?,
        sys_flag: number(&sys_flag, &mut fits)?,
        born_ms: number(&born_ms, &mut fits)?,
        reconsume: number(&reconsume, &mut fits)?,
        prepared: number(&prepared, &mut fits)?,
        code: number(&code, &mut code_fits)?,
    };
    fits &= code_fits || !columns::is_queued(numbers.sys_flag); // without a queue entry it is written nowhere
    let size = body.len();
    messages.add_made(&Source::new(Box::new(body), &host), 0..size, &text, numbers, fits);
    Ok(())
}

#[pymethods]
impl Messages {
    #[new]
    #[pyo3(signature = (drafts = None))]
    fn new(drafts: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let mut inner = columns::Messages::default();
        if let Some(drafts) = drafts {
            for draft in drafts.try_iter()? {
                add(&mut inner, &draft?)?;
            }
        }
        Ok(Messages { inner })
    }

    /// Return messages that are stored already, whose senders are to be answered.
    #[classmethod]
    fn lying_at(_type: &Bound<'_, PyType>, places: Vec<i64>) -> Self {
        let mut inner = columns::Messages::default();
        inner.lie_at(places);
        Messages { inner }
    }

    /// Return what commits of half messages store: each as it is, with the commit bit and the place of its own record.
    #[classmethod]
    fn committed(_type: &Bound<'_, PyType>, halves: Vec<(PyRef<'_, Messages>, i64)>) -> Self {
        let mut inner = columns::Messages::default();
        for (half, place) in halves {
            inner.add_committed(&half.inner, place);
        }
        Messages { inner }
    }

    /// Return messages whose bodies are numbers in decimal digits, and that share everything else.
    #[classmethod]
    fn numbers(_type: &Bound<'_, PyType>, bodies: Vec<i64>, properties: &[u8], born_ms: i64, host: &[u8], code: i64) -> Self {
        let texts: Vec<String> = bodies.iter().map(i64::to_string).collect();
        let source = Source::new(Box::new(texts.concat()), host);
        let (mut inner, mut at) = (columns::Messages::default(), 0_usize);
        for text in &texts {
            let end = at.saturating_add(text.len());
            inner.add(&source, at..end, properties, Numbers { born_ms, code, ..Numbers::default() });
            at = end;
        }
        Messages { inner }
    }

    /// Return each message by itself, to be kept for long: it holds no bytes of others.
    fn kept(&self) -> Vec<Messages> {
        self.inner.kept().map(|inner| Messages { inner }).collect()
    }

    fn __len__(&self) -> usize {
        self.inner.len()
    }

    /// The messages as they are stored, made anew at each look.
    #[getter]
    fn drafts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let made = PyList::empty(py);
        for view in self.inner.views() {
            let numbers = view.numbers;
            let (body, text) = (PyBytes::new(py, view.body), PyBytes::new(py, view.properties));
            let (born_ms, host) = (numbers.born_ms, PyBytes::new(py, view.host));
            let (flag, sys_flag, reconsume) = (numbers.flag, numbers.sys_flag, numbers.reconsume);
            made.append((body, text, flag, sys_flag, born_ms, host, reconsume, numbers.prepared, numbers.code))?;
        }
        Ok(made)
    }

    /// The senders, in order, made anew at each look.
    #[getter]
    fn senders(&self) -> Vec<SenderFields> {
        let fields = |one: &Sender| (one.peer, one.opaque, one.serialization, one.how, one.count);
        self.inner.senders().iter().map(fields).collect()
    }

    /// The physical offsets of those that are encoded, made anew at each look.
    #[getter]
    fn places(&self) -> Vec<i64> {
        self.inner.places().to_vec()
    }

    /// How many are not encoded.
    #[getter]
    fn left(&self) -> i64 {
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        count(self.inner.len()).saturating_sub(count(self.inner.places().len()))
    }

    /// Say who sent the next `count` messages, as one request.
    fn sent(&mut self, peer: i64, opaque: i32, serialization: i64, how: i64, count: usize) {
        self.inner.sent(Sender { peer, opaque, serialization, how, count });
    }

    /// Return the messages of each request by themselves, none of them encoded.
    fn apart(&self) -> Vec<Messages> {
        self.inner.apart().into_iter().map(|inner| Messages { inner }).collect()
    }

    /// Whether some sender is answered so.
    fn answered(&self, how: i64) -> bool {
        self.inner.senders().iter().any(|sender| sender.how == how)
    }

    /// Return records and queue entries of those that are left, as many as fit into `room` bytes.
    #[allow(clippy::too_many_arguments)]
    fn encode<'py>(
        &mut self,
        py: Python<'py>,
        topic: PyBackedStr,
        queue_id: i64,
        queue_offset: i64,
        at: i64,
        room: i64,
        size_max: i64,
        now: i64,
        host: PyBackedBytes,
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        if host.len() != 8 && host.len() != 20 {
            return Err(PyKeyError::new_err((8, host.len())));
        }
        let target = Target { topic: topic.as_bytes(), queue_id, queue_offset, at, room, size_max, now, host: &host };
        let plan = self.inner.plan(&target)?;
        let (record_bytes, entry_bytes) = (plan.record_bytes, plan.entry_bytes);
        let mut entries = vec![0; entry_bytes];
        let records = PyBytes::new_with(py, record_bytes, |records| {
            let written = self.inner.write(plan, &target, records, &mut entries);
            written.ok_or_else(|| MessageIllegal::new_err("a number of the message is out of range"))
        })?;
        Ok((records, PyBytes::new(py, &entries)))
    }

    /// Return the size of each record, in bytes.
    fn sizes(&self, topic: PyBackedStr, host: PyBackedBytes) -> Vec<usize> {
        self.inner.sizes(topic.len(), host.len())
    }

    /// Return the sizes of those that are not parted: of each request, or of each message where nobody asked.
    fn together(&self, sizes: Vec<i64>) -> Vec<i64> {
        if self.inner.senders().is_empty() {
            return sizes;
        }
        let mut left = sizes.into_iter();
        let mut of_one = |sender: &Sender| left.by_ref().take(sender.count).fold(0, i64::saturating_add);
        self.inner.senders().iter().map(&mut of_one).collect()
    }
}

// ---------------------------------------------------------------- reading

/// The columns of a turn. `suffix` are the pairs that each stored message gets, `body_max` the longest body.
#[pyclass(module = "halfmoon_native")]
struct Reader {
    inner: reader::Reader,
}

#[pymethods]
impl Reader {
    #[new]
    fn new(suffix: &[u8], body_max: usize) -> Self {
        Reader { inner: reader::Reader::new(suffix, body_max) }
    }

    /// Take the ordinary sends to a queue from now on.
    fn open(&mut self, topic: PyBackedStr, queue_id: i64) {
        self.inner.open(&topic, queue_id);
    }

    /// Take the ordinary half messages for a queue from now on; `suffix` are whole pairs that say where they belong.
    fn open_halves(&mut self, topic: PyBackedStr, queue_id: i64, suffix: &[u8]) {
        self.inner.open_halves(&topic, queue_id, suffix);
    }

    /// Take batches with these properties: each message gets `suffix`, and the sender waits for the sync or not.
    #[pyo3(signature = (text, suffix, *, wait))]
    fn open_batch(&mut self, text: &[u8], suffix: &[u8], wait: bool) {
        self.inner.open_batch(text, suffix, wait);
    }

    /// Take nothing: topics changed.
    fn close(&mut self) {
        self.inner.close();
    }

    /// How many queues are open.
    fn __len__(&self) -> usize {
        self.inner.open_count()
    }

    /// Read what a connection brought; `host` is stored as where the messages were born. What a verifier does not know is left.
    #[pyo3(signature = (peer, host, data, verifier = None))]
    fn read(&mut self, peer: i64, host: &[u8], data: PyBackedBytes, verifier: Option<PyRef<'_, Verifier>>) -> Found {
        let source = Source::new(Box::new(data), host);
        let mut others = Vec::new();
        let rest = self.inner.read(peer, &source, verifier.as_deref().map(|one| &one.inner), |frame| others.push(fields(frame)));
        found(others, rest)
    }

    /// Take out what was read since the last call, as (topic, queue id, producer group, messages).
    fn take(&mut self) -> Vec<(String, i32, String, Messages)> {
        let fields = |one: reader::Group| (one.topic, one.queue_id, one.producer_group, Messages { inner: one.messages });
        self.inner.take().into_iter().map(fields).collect()
    }

    /// Take out what producers decided since the last call; None: nothing.
    fn completions(&mut self) -> Option<Completions> {
        let inner = self.inner.completions();
        (!inner.is_empty()).then_some(Completions { inner })
    }
}

// ---------------------------------------------------------------- signatures

/// Signs the requests of one account; `token` is empty where none is wanted.
#[pyclass(module = "halfmoon_native", frozen)]
struct Signer {
    inner: signing::Signer,
}

fn no_key() -> PyErr {
    PyValueError::new_err("no key can be made of the secret")
}

#[pymethods]
impl Signer {
    #[new]
    fn new(access_key: PyBackedStr, secret: PyBackedStr, token: PyBackedStr) -> PyResult<Self> {
        let inner = signing::Signer::new(&access_key, secret.as_bytes(), &token).ok_or_else(no_key)?;
        Ok(Signer { inner })
    }
}

/// The sends that one account may make without being looked at again; without a secret it need not sign, and may send everything.
#[pyclass(module = "halfmoon_native")]
struct Verifier {
    inner: signing::Verifier,
}

#[pymethods]
impl Verifier {
    #[new]
    #[pyo3(signature = (access_key, secret, *, bound = false))]
    fn new(access_key: PyBackedStr, secret: Option<&[u8]>, bound: bool) -> PyResult<Self> {
        let inner = signing::Verifier::new(&access_key, secret, bound).ok_or_else(no_key)?;
        Ok(Verifier { inner })
    }

    /// Let requests of this code for this topic pass from now on; "": it names none.
    fn allow(&mut self, code: i64, topic: PyBackedStr) {
        let mut asked = Vec::new();
        reader::write_key(topic.as_bytes(), code, &mut asked);
        self.inner.allow(asked);
    }
}

// ---------------------------------------------------------------- transactions

type Caller = completions::Caller;
type CompletionFields<'a> = (Option<Caller>, i64, &'a str, i64, i64, bool, &'a str);

fn missing() -> PyErr {
    PyIndexError::new_err("there is no such completion")
}

/// The decisions of producers in one turn.
#[pyclass(module = "halfmoon_native")]
#[derive(Default)]
struct Completions {
    inner: completions::Completions,
}

#[pymethods]
impl Completions {
    #[new]
    fn new() -> Self {
        Completions::default()
    }

    fn __len__(&self) -> usize {
        self.inner.len()
    }

    /// Add one; `check`: it answers a check of a broker's.
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (caller, peer, group, index, place, committed, key, *, check = false))]
    fn add(
        &mut self,
        caller: Option<Caller>,
        peer: i64,
        group: PyBackedStr,
        index: i64,
        place: i64,
        committed: bool,
        key: PyBackedStr,
        check: bool,
    ) {
        self.inner.add(caller, peer, &group, index, place, committed, &key, check);
    }

    /// Return one.
    fn at(&self, number: usize) -> PyResult<CompletionFields<'_>> {
        let (completion, group, key) = self.inner.at(number).ok_or_else(missing)?;
        Ok((completion.caller, completion.peer, group, completion.index, completion.place, completion.committed, key))
    }

    /// Those that answer a check of a broker's; a new list at each access.
    #[getter]
    fn checks(&self) -> Vec<usize> {
        self.inner.checks.clone()
    }

    /// Return who of these waits for a reply, and the commits and rollbacks by producer group.
    fn tally(&self, committed: Vec<usize>, rolled_back: Vec<usize>) -> PyResult<completions::Tally> {
        self.inner.tally(&committed, &rolled_back).ok_or_else(missing)
    }
}

type GroupFields = (String, i64, &'static str, Messages);
type Decided = (Vec<GroupFields>, Vec<Vec<usize>>, Vec<usize>, Vec<i64>, Vec<usize>);

/// The newest pending half messages, by index.
#[pyclass(module = "halfmoon_native")]
struct HalfMessageCache {
    inner: completions::HalfMessageCache,
}

#[pymethods]
impl HalfMessageCache {
    #[new]
    fn new(count_max: usize, bytes_max: i64) -> Self {
        HalfMessageCache { inner: completions::HalfMessageCache::new(count_max, bytes_max) }
    }

    fn __len__(&self) -> usize {
        self.inner.len()
    }

    /// Add half messages of one queue, at indexes from `index` on, with their queue entries.
    fn add(
        &mut self,
        index: i64,
        entries: &[u8],
        topic: PyBackedStr,
        queue_id: i64,
        group: PyBackedStr,
        messages: PyRef<'_, Messages>,
    ) {
        self.inner.add(index, entries, &topic, queue_id, &group, &messages.inner);
    }

    /// Return one by itself; None: it is not in the cache.
    fn get(&self, index: i64) -> Option<Messages> {
        self.inner.get(index).and_then(|half| half.kept().next()).map(|inner| Messages { inner })
    }

    /// Remove those that are in the cache.
    fn drop(&mut self, indexes: Vec<i64>) {
        self.inner.drop(&indexes);
    }

    /// Return what completions, all or the chosen ones, decide of the half messages in the cache.
    #[pyo3(signature = (completions, chosen = None))]
    fn decide(&self, completions: PyRef<'_, Completions>, chosen: Option<Vec<usize>>) -> PyResult<Decided> {
        let decided = match chosen {
            Some(chosen) => self.inner.decide(&completions.inner, chosen.into_iter()),
            None => self.inner.decide(&completions.inner, 0..completions.inner.len()),
        };
        let decided = decided.ok_or_else(missing)?;
        let group =
            |(queue, inner): (std::sync::Arc<(String, i64)>, columns::Messages)| (queue.0.clone(), queue.1, "", Messages { inner });
        let groups = decided.queues.into_iter().map(group).collect();
        Ok((groups, decided.numbers, decided.rolled_back, decided.indexes, decided.others))
    }
}

type Rows<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// Return states and units of half messages of one producer group, from their queue entries.
#[pyfunction]
fn prepared_rows<'py>(py: Python<'py>, entries: &[u8], store_s: i64, group_hash: i64) -> PyResult<Rows<'py>> {
    let found = states::prepared(entries, store_s, group_hash);
    let (states, units) = found.ok_or_else(|| PyValueError::new_err("a half message does not fit the state table"))?;
    Ok((PyBytes::new(py, &states), PyBytes::new(py, &units)))
}

/// Return the runs of what lies near each other, rising; none goes beyond a file of `per_file`, or a `block` of it.
#[pyfunction]
fn runs_of(indexes: Vec<i64>, per_file: i64, block: i64) -> PyResult<Vec<states::Run>> {
    states::runs_of(indexes, per_file, block).ok_or_else(|| PyZeroDivisionError::new_err("a file without records"))
}

type Settled<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, Vec<(i32, usize)>);

/// Return the states of `runs` with decisions in them, their units, and how many decisions there are of each group hash.
#[pyfunction]
fn decided_rows<'py>(
    py: Python<'py>,
    states: &[u8],
    runs: Vec<states::Run>,
    indexes: Vec<i64>,
    entries: &[u8],
    committed: usize,
) -> PyResult<Settled<'py>> {
    if Some(entries.len()) != indexes.len().checked_mul(states::ENTRY_BYTES) {
        return Err(PyValueError::new_err("decisions and records that decide are not as many"));
    }
    let found = states::decided(states.to_vec(), &runs, &indexes, entries, committed);
    let found = found.map_err(|index| PyValueError::new_err(format!("the half message {index} is not pending")))?;
    Ok((PyBytes::new(py, &found.states), PyBytes::new(py, &found.units), found.groups))
}

// ---------------------------------------------------------------- functions

type Told<'py> = Vec<(i64, Bound<'py, PyBytes>)>;

/// Return (connection, frames) of the senders of stored messages that are answered as `which` says. A group is messages of one queue,
/// its id, and the queue offset of the first. `trace_on`: clients with tracing on are to report these sends.
#[pyfunction]
#[pyo3(signature = (groups, which, region, host_hex, version, *, trace_on))]
fn send_answers<'py>(
    py: Python<'py>,
    groups: Vec<(PyRef<'py, Messages>, i64, i64)>,
    which: i64,
    region: PyBackedStr,
    host_hex: PyBackedStr,
    version: i16,
    trace_on: bool,
) -> PyResult<Told<'py>> {
    let mut told = columns::Told::default();
    for (messages, queue_id, queue_offset) in groups {
        let form = Form { region: &region, trace_on, version, queue_id, host_hex: &host_hex };
        let answered = messages.inner.answers(which, queue_offset, &form, &mut told);
        answered.ok_or_else(|| PyIndexError::new_err("a message is not encoded"))?;
    }
    Ok(told.found.into_iter().map(|(peer, frames)| (peer, PyBytes::new(py, &frames))).collect())
}

/// Return (connection, frames) for (connection, opaque, serialisation) of each: that it is done, and nothing else.
#[pyfunction]
fn done_answers(py: Python<'_>, senders: Vec<(i64, i32, i64)>, version: i16) -> Told<'_> {
    let mut found: Vec<(i64, Vec<u8>)> = Vec::new();
    for (peer, opaque, serialization) in senders {
        if found.last().is_none_or(|(last, _)| *last != peer) {
            found.push((peer, Vec::with_capacity(128)));
        }
        if let Some((_, out)) = found.last_mut() {
            answers::done(serialization, opaque, version, out);
        }
    }
    found.into_iter().map(|(peer, frames)| (peer, PyBytes::new(py, &frames))).collect()
}

/// Return the frame that answers a pull up to its body, of which `size_bytes` follow.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn pull_head<'py>(
    py: Python<'py>,
    opaque: i32,
    serialization: i64,
    code: i16,
    remark: PyBackedStr,
    offsets: (i64, i64, i64),
    birth_ms: Option<i64>,
    size_bytes: usize,
    version: i16,
) -> Bound<'py, PyBytes> {
    let mut out = Vec::with_capacity(320);
    let pulled = Pulled { code, remark: &remark, offsets: offsets.into(), birth_ms, version };
    pulled.head(serialization, opaque, size_bytes, &mut out);
    PyBytes::new(py, &out)
}

/// Return code, flag and opaque of a header in JSON; None: it must be decoded to be believed.
#[pyfunction]
fn head_json(header: &[u8], fields_max: usize) -> Option<(i32, i32, i32)> {
    headers::head_json(header, fields_max)
}

/// Cut a run of bytes into whole frames.
#[pyfunction]
fn split_frames(data: &[u8], frame_max: i64, header_max: i64) -> Found {
    let mut whole = Vec::new();
    let rest = frames::cut(data, frame_max, header_max, |frame| whole.push(fields(frame)));
    found(whole, rest)
}

type Item<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, i32);

const PROPERTIES_BYTES_MAX: usize = 32_767;

/// Return the body of a batch of (body, properties, flag).
#[pyfunction]
fn encode_batch<'py>(items: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let mut out = Vec::new();
    for item in items.try_iter()? {
        let (body, text, flag): (PyBackedBytes, PyBackedBytes, Bound<'py, PyAny>) = item?.extract()?;
        if text.len() > PROPERTIES_BYTES_MAX {
            let found = format!("the properties have {} bytes, more than {PROPERTIES_BYTES_MAX}", text.len());
            return Err(MessageIllegal::new_err(found));
        }
        let mut fits = true;
        let flag = i32::try_from(number(&flag, &mut fits)?).ok().filter(|_| fits);
        flag.and_then(|flag| batch::encode_item(&body, &text, flag, &mut out))
            .ok_or_else(|| MessageIllegal::new_err("a number of the message is out of range"))?;
    }
    Ok(PyBytes::new(items.py(), &out))
}

/// Return properties as they travel and are stored, with a separator after the last pair too.
#[pyfunction]
fn encode_properties<'py>(properties: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let (mut out, mut plain, mut text) = (Vec::with_capacity(128), true, true);
    let mut add = |name: &Bound<'py, PyString>, value: &Bound<'py, PyString>| {
        if let (Ok(name), Ok(value)) = (name.to_str(), value.to_str()) {
            plain &= properties::encode_property(name, value, &mut out);
            return;
        }
        let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
        text &= name.is_empty() || value.is_empty();
        plain &= properties::encode_property(&name, &value, &mut out);
    };
    if let Ok(properties) = properties.cast::<PyDict>() {
        for (name, value) in properties {
            add(name.cast()?, value.cast()?);
        }
    } else {
        for pair in properties.call_method0("items")?.try_iter()? {
            let (name, value): (Bound<'py, PyString>, Bound<'py, PyString>) = pair?.extract()?;
            add(&name, &value);
        }
    }
    match (plain, text) {
        (true, true) => Ok(PyBytes::new(properties.py(), &out)),
        (true, false) => Err(MessageIllegal::new_err("a property contains half of a surrogate pair")),
        (false, _) => Err(MessageIllegal::new_err("a property contains a separator (0x01 or 0x02)")),
    }
}

/// Return a field as it travels.
fn text_of<'a>(value: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, str>> {
    if let Ok(text) = value.cast::<PyString>() {
        Ok(Cow::Borrowed(text.to_str()?))
    } else if let Ok(truth) = value.cast::<PyBool>() {
        Ok(Cow::Borrowed(if truth.is_true() { "true" } else { "false" }))
    } else {
        Ok(Cow::Owned(value.extract::<i64>()?.to_string()))
    }
}

/// Return the whole frame of a request of ours whose header has these fields, and those of the signer behind them.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
#[pyo3(signature = (code, flag, opaque, version, names, values, body, serialization, remark, signer = None))]
fn request_frame<'py>(
    code: i32,
    flag: i32,
    opaque: i32,
    version: i16,
    names: &Bound<'py, PyTuple>,
    values: &Bound<'py, PyTuple>,
    body: PyBackedBytes,
    serialization: i64,
    remark: Option<PyBackedStr>,
    signer: Option<PyRef<'_, Signer>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let head = Head { code, flag, opaque, version, remark: remark.as_deref(), json: serialization == 0 };
    let mut frame = RequestFrame::new(&head, body.len().saturating_add(640));
    let items = names.iter().zip(values.iter()).filter(|(_, value)| !value.is_none());
    let items = items.map(|(name, value)| Ok((name.cast_into::<PyString>()?, value))).collect::<PyResult<Vec<_>>>()?;
    let mut fields = items.iter().map(|(name, value)| Ok((name.to_str()?, text_of(value)?))).collect::<PyResult<Vec<_>>>()?;
    if let Some(signer) = &signer {
        let own = signer.inner.sign(&fields, &body);
        fields.extend(own);
    }
    for (name, value) in &fields {
        frame.field(name, value).ok_or_else(|| PyValueError::new_err("the name of a field is too long"))?;
    }
    let frame = frame.end(&body).ok_or_else(|| PyValueError::new_err("the frame is too long"))?;
    Ok(PyBytes::new(values.py(), &frame))
}

/// Split a batch body into (body, properties, flag) of each message.
#[pyfunction]
fn batch_items<'py>(py: Python<'py>, body: &[u8]) -> PyResult<Vec<Item<'py>>> {
    let bytes = |range| PyBytes::new(py, body.get(range).unwrap_or(&[]));
    let items = batch::batch_items(body).map_err(PyValueError::new_err)?;
    Ok(items.into_iter().map(|item| (bytes(item.body), bytes(item.properties), item.flag)).collect())
}

/// Split a batch body into what is stored; `suffix` are whole pairs that each message gets behind its own.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn batch_drafts<'py>(
    py: Python<'py>,
    body: &[u8],
    suffix: &[u8],
    sys_flag: &Bound<'py, PyAny>,
    born_ms: &Bound<'py, PyAny>,
    host: &Bound<'py, PyBytes>,
    reconsume: &Bound<'py, PyAny>,
    properties_max: usize,
) -> PyResult<Option<Bound<'py, PyList>>> {
    let Ok(items) = batch::batch_items(body) else { return Ok(None) };
    if !(1..=batch::BATCH_MAX).contains(&items.len()) {
        return Ok(None);
    }
    let made = PyList::empty(py);
    let mut text = Vec::new();
    for item in items {
        text.clear();
        let sent = body.get(item.properties).unwrap_or(&[]);
        let prepared = properties::stored_properties(sent, suffix, &mut text).filter(|_| text.len() <= properties_max);
        let Some(prepared) = prepared else { return Ok(None) };
        let one = PyBytes::new(py, body.get(item.body).unwrap_or(&[]));
        made.append((one, PyBytes::new(py, &text), item.flag, sys_flag, born_ms, host, reconsume, 0, prepared.code))?;
    }
    Ok(Some(made))
}

/// Prepare properties for storing: WAIT goes out, `suffix` (whole pairs) comes in at the end.
#[pyfunction]
fn stored_properties<'py>(py: Python<'py>, text: &[u8], suffix: &[u8]) -> Option<(Bound<'py, PyBytes>, i32, bool)> {
    let mut out = Vec::new();
    let found = properties::stored_properties(text, suffix, &mut out)?;
    Some((PyBytes::new(py, &out), found.code, found.wait))
}

/// Return the tag code of a queue entry: Java's hash of the tag's text, signed; 0 for no tag.
#[pyfunction]
fn tag_hash(py: Python<'_>, tag: &[u8]) -> PyResult<i32> {
    match (properties::tag_hash(tag), std::str::from_utf8(tag)) {
        (Some(code), _) => Ok(code),
        (None, Err(error)) => Err(PyUnicodeDecodeError::new_err_from_utf8(py, tag, error)),
        (None, Ok(_)) => Ok(0),
    }
}

/// Return the CRC-32 of bytes, going on from `value`.
#[pyfunction]
#[pyo3(signature = (data, value = 0, /))]
fn crc32(data: &Bound<'_, PyAny>, value: u32) -> PyResult<u32> {
    let mut hasher = crc32fast::Hasher::new_with_initial(value);
    match data.cast::<PyBytes>() {
        Ok(bytes) => hasher.update(bytes.as_bytes()),
        Err(_) => hasher.update(&PyBuffer::<u8>::get(data)?.to_vec(data.py())?),
    }
    Ok(hasher.finalize())
}

/// Return the sum of the CRC-32 of stretches of bytes that lie one behind another. `offsets` are 32-bit numbers: where each begins,
/// and where the last one ends.
#[pyfunction]
#[pyo3(signature = (data, offsets, /))]
fn crc_sum(py: Python<'_>, data: &Bound<'_, PyAny>, offsets: &Bound<'_, PyAny>) -> PyResult<u64> {
    let (data, offsets) = (PyBuffer::<u8>::get(data)?.to_vec(py)?, PyBuffer::<u8>::get(offsets)?.to_vec(py)?);
    let place = |bytes: &[u8]| usize::try_from(i32::from_ne_bytes(bytes.try_into().ok()?)).ok();
    let sum = py.detach(|| {
        let places = offsets.chunks_exact(4);
        let stretches = places.clone().zip(places.skip(1)).map(|(begin, end)| data.get(place(begin)?..place(end)?));
        stretches.map(|stretch| Some(u64::from(crc32fast::hash(stretch?)))).sum::<Option<u64>>()
    });
    sum.ok_or_else(|| PyValueError::new_err("the offsets do not rise, or lead beyond the bytes"))
}

/// Return how many of the records that lie one behind another are whole and name their own place, up to the first that does not.
#[pyfunction]
fn whole_records(
    data: &Bound<'_, PyAny>,
    sizes: Vec<i64>,
    queue_id: i32,
    queue_offset: i64,
    physical_offset: i64,
) -> PyResult<usize> {
    Ok(record::whole_records(&Shared::of(data)?, &sizes, (queue_id, queue_offset, physical_offset)))
}

type Pieces<'py> = Vec<Bound<'py, PyAny>>;

/// Return how many records are taken, how many bytes they have, and these bytes, where neighbours are one piece.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn gather<'py>(
    area: &Bound<'py, PyAny>,
    base: i64,
    entries: &[u8],
    chosen: Option<Vec<usize>>,
    queue_id: i32,
    queue_offset: i64,
    bytes_max: i64,
    known: bool,
) -> PyResult<(usize, usize, Pieces<'py>)> {
    let place = (queue_id, queue_offset);
    let wanted = match chosen {
        Some(chosen) => record::wanted(entries, base, area.len()?, chosen.into_iter(), place, bytes_max),
        None => record::wanted(entries, base, area.len()?, 0..entries.len() / record::ENTRY_BYTES, place, bytes_max),
    };
    let pieces = slices_of(area, &wanted.runs)?;
    let (count, size) = (wanted.records.len(), wanted.size);
    if known && (pieces.len() < 2 || size > record::JOINED_MAX || size >= pieces.len().saturating_mul(record::APART_MIN)) {
        return Ok((count, size, pieces));
    }
    if size <= record::JOINED_MAX { joined(area.py(), &wanted, pieces, known) } else { apart(&wanted, pieces) }
}

/// Copy all at once, and take what is whole of it.
fn joined<'py>(py: Python<'py>, wanted: &Wanted, pieces: Pieces<'py>, known: bool) -> PyResult<(usize, usize, Pieces<'py>)> {
    let data = PyBytes::new(py, b"").call_method1(intern!(py, "join"), (pieces,))?.cast_into::<PyBytes>()?;
    let (count, size) =
        if known { (wanted.records.len(), wanted.size) } else { record::whole_of(&data.as_bytes(), &wanted.records) };
    let piece = PyMemoryView::from(&data)?.into_any();
    Ok((count, size, if count == 0 { Vec::new() } else { vec![slice_of(&piece, 0, size)?] }))
}

/// Take what is whole as it lies.
fn apart<'py>(wanted: &Wanted, pieces: Pieces<'py>) -> PyResult<(usize, usize, Pieces<'py>)> {
    let (mut count, mut all, mut taken) = (0_usize, 0_usize, Vec::new());
    for piece in pieces {
        let left = wanted.records.get(count..).unwrap_or_default();
        let (more, size) = record::whole_of(&Shared::of(&piece)?, left);
        count = count.saturating_add(more);
        all = all.saturating_add(size);
        if size < piece.len()? {
            if size > 0 {
                taken.push(slice_of(&piece, 0, size)?);
            }
            break;
        }
        taken.push(piece);
    }
    Ok((count, all, taken))
}

fn slices_of<'py>(data: &Bound<'py, PyAny>, runs: &[(usize, usize)]) -> PyResult<Pieces<'py>> {
    if runs.len() <= RUNS_FEW {
        return runs.iter().map(|(begin, end)| slice_of(data, *begin, *end)).collect();
    }
    let bytes = data.cast::<PySequence>()?;
    runs.iter().map(|(begin, end)| Ok(bytes.get_slice(*begin, *end)?.into_any())).collect()
}

fn slice_of<'py>(data: &Bound<'py, PyAny>, begin: usize, end: usize) -> PyResult<Bound<'py, PyAny>> {
    data.get_item(data.py().get_type::<PySlice>().call1((begin, end))?) // PySlice::new never gives its numbers back
}

type Row<'py> = (Bound<'py, PyTuple>, Bound<'py, PyBytes>, Bound<'py, PyBytes>, usize);

/// Return head, body, what stands behind it, and the length of the topic, of each record from `at` on that is whole, and where the
/// first begins that is not.
#[pyfunction]
fn record_rows<'py>(data: &Bound<'py, PyBytes>, at: usize) -> PyResult<(Vec<Row<'py>>, usize)> {
    let (py, bytes, mut at, mut rows) = (data.py(), data.as_bytes(), at, Vec::new());
    while let Some((row, end)) = row_at(py, bytes, at)? {
        rows.push(row);
        at = end;
    }
    Ok((rows, at))
}

fn row_at<'py>(py: Python<'py>, data: &[u8], at: usize) -> PyResult<Option<(Row<'py>, usize)>> {
    let Some(parts) = record::parts_at(&data, at) else { return Ok(None) };
    let Some(head) = record::head_at(data, at, parts.hosts) else { return Ok(None) };
    let bytes = |at: usize, size: usize| PyBytes::new(py, data.get(at..at.saturating_add(size)).unwrap_or(&[]));
    let born_at = at.saturating_add(48);
    let store_at = born_at.saturating_add(parts.hosts.0).saturating_add(8);
    let ([size, magic, crc, queue_id, flag], [offset, place]) = (head.first, head.offsets);
    let [born_ms, store_ms] = head.times;
    let small = |number: i32| number.into_pyobject(py).map(Bound::into_any);
    let large = |number: i64| number.into_pyobject(py).map(Bound::into_any);
    let made = PyTuple::new(
        py,
        [
            small(size)?,
            small(magic)?,
            small(crc)?,
            small(queue_id)?,
            small(flag)?,
            large(offset)?,
            large(place)?,
            small(head.sys_flag)?,
            large(born_ms)?,
            bytes(born_at, parts.hosts.0).into_any(),
            large(store_ms)?,
            bytes(store_at, parts.hosts.1).into_any(),
            small(head.reconsume)?,
            large(head.prepared)?,
            parts.body.into_pyobject(py)?.into_any(),
        ],
    )?;
    let tail = bytes(parts.topic_at, parts.end.saturating_sub(parts.topic_at));
    Ok(Some(((made, bytes(parts.body_at, parts.body), tail, parts.topic), parts.end)))
}

/// Bytes of Python's that others may write meanwhile: what is looked at is copied, a page at a time.
struct Shared<'py> {
    data: Bound<'py, PyMemoryView>,
    len: usize,
    page: Cell<Option<Page<'py>>>,
}

/// Where a copy begins, and its bytes.
type Page<'py> = (usize, Bound<'py, PyBytes>);

impl<'py> Shared<'py> {
    fn of(data: &Bound<'py, PyAny>) -> PyResult<Self> {
        let data = PyMemoryView::from(data)?;
        Ok(Self { len: data.len()?, data, page: Cell::default() })
    }

    fn page(&self, begin: usize, end: usize) -> PyResult<Page<'py>> {
        Ok((begin, self.copied(begin, end.max(begin.saturating_add(PAGE_BYTES).min(self.len)))?))
    }

    fn copied(&self, begin: usize, end: usize) -> PyResult<Bound<'py, PyBytes>> {
        Ok(slice_of(&self.data, begin, end)?.call_method0(intern!(self.data.py(), "tobytes"))?.cast_into()?)
    }
}

impl Area for Shared<'_> {
    type Piece = PyBackedBytes;

    fn len(&self) -> usize {
        self.len
    }

    fn piece(&self, begin: usize, end: usize) -> Option<PyBackedBytes> {
        (end <= self.len).then(|| self.copied(begin, end).ok().map(PyBackedBytes::from))?
    }
}

impl Bytes for Shared<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn copy(&self, at: usize, into: &mut [u8]) -> Option<()> {
        let end = at.checked_add(into.len()).filter(|end| *end <= self.len)?;
        let has = |page: &Page<'_>| page.0 <= at && end.saturating_sub(page.0) <= page.1.as_bytes().len();
        let page = match self.page.take().filter(has) {
            Some(page) => page,
            None => self.page(at, end).ok()?,
        };
        let at = at.checked_sub(page.0)?;
        into.copy_from_slice(page.1.as_bytes().get(at..at.checked_add(into.len())?)?);
        self.page.set(Some(page));
        Some(())
    }
}

/// Where the buffers of each column lie.
type Places = Vec<Vec<Option<(usize, usize)>>>;

/// Return the records that lie one behind another and have a queue offset from `begin` up to `end`, as columns of Arrow. Others may
/// use the interpreter meanwhile.
#[pyfunction]
fn row_columns<'py>(
    py: Python<'py>,
    raw: PyBackedBytes,
    begin: i64,
    end: i64,
    names: Vec<PyBackedStr>,
    verify: bool,
) -> PyResult<Option<(usize, Bound<'py, PyBytes>, Places)>> {
    let Some(kinds) = names.iter().map(|name| rows::kind_of(name)).collect::<Option<Vec<_>>>() else { return Ok(None) };
    let planned = py.detach(|| {
        let found = rows::rows(&raw, begin, end, &kinds, verify)?;
        let sizes = kinds.iter().map(|kind| found.sizes(*kind)).collect::<Option<Vec<_>>>()?;
        Some((found, sizes))
    });
    let Some((found, sizes)) = planned else { return Ok(None) };
    let mut end = 0_usize;
    let mut place = |size: usize| {
        let begin = end;
        end = end.saturating_add(size).next_multiple_of(ALIGNED);
        (begin, size)
    };
    let places: Places = sizes.iter().map(|sizes| sizes.iter().map(|size| size.map(&mut place)).collect()).collect();
    let all = PyBytes::new_with(py, end, |all| {
        let filled = py.detach(|| {
            let mut rest = all;
            for (kind, sizes) in kinds.iter().zip(&sizes) {
                let mut buffers = Vec::new();
                for size in sizes.iter().flatten() {
                    let (buffer, behind) = rest.split_at_mut_checked(size.next_multiple_of(ALIGNED))?;
                    buffers.push(buffer.get_mut(..*size)?);
                    rest = behind;
                }
                found.fill(*kind, &mut buffers)?;
            }
            Some(())
        });
        filled.ok_or_else(|| PyIndexError::new_err("a buffer has no place"))
    })?;
    Ok(Some((found.count(), all, places)))
}

/// Return the indexes, rising, of the first `at_most` entries of records with one of these tag codes.
#[pyfunction]
fn tag_matches(entries: &[u8], codes: Vec<i64>, at_most: usize) -> Vec<usize> {
    filtering::tag_matches(entries, &codes, at_most)
}

/// An expression, as far as it can be told quickly whether messages match.
#[pyclass(module = "halfmoon_native", frozen)]
struct BulkFilter {
    /// Apart, for a searcher wants a place that is a multiple of 32, and Python's objects lie at multiples of 16.
    inner: Box<filtering::BulkFilter>,
}

#[pymethods]
impl BulkFilter {
    #[new]
    fn new(tree: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut names = Names::default();
        let node = node_of(tree, &mut names, DEPTH_MAX)?;
        Ok(BulkFilter { inner: Box::new(filtering::BulkFilter::of(names, node)) })
    }

    /// Return the indexes, rising, of blocks of stored properties that match, and of those that somebody else must test.
    fn matching(&self, blocks: &Bound<'_, PyAny>) -> PyResult<(Vec<usize>, Vec<usize>)> {
        let blocks = blocks.try_iter()?.map(|block| Ok(block?.cast_into::<PyBytes>()?)).collect::<PyResult<Vec<_>>>()?;
        Ok(self.inner.matching(blocks.iter().map(|block| block.as_bytes())))
    }

    /// Look at the records of entries; `area` are bytes of the log from the offset `base` on. Return the indexes of those that
    /// match, of those that somebody else must test, their properties, how many were looked at, and the steps that it costs.
    #[allow(clippy::too_many_arguments)]
    fn records<'py>(
        &self,
        area: &Bound<'py, PyAny>,
        base: i64,
        entries: &[u8],
        steps: i64,
        message: u64,
        weight: u64,
        at_most: usize,
    ) -> PyResult<Records<'py>> {
        let found = self.inner.records(&Shared::of(area)?, base, entries, Room { steps, message, weight, at_most });
        let blocks = found.blocks.iter().map(|block| PyBytes::new(area.py(), block)).collect();
        Ok((found.sure, found.unsure, blocks, found.looked, found.spent))
    }
}

type Records<'py> = (Vec<usize>, Vec<usize>, Vec<Bound<'py, PyBytes>>, usize, i64);

/// Python gives objects places that are multiples of 16.
const _: () = assert!(align_of::<BulkFilter>() <= 16 && align_of::<Messages>() <= 16 && align_of::<Reader>() <= 16);

/// Read a node of `halfmoon.sql92.tree`; one that is deeper than `depth`, or not known here, is left to the caller.
fn node_of(node: &Bound<'_, PyAny>, names: &mut Names, depth: usize) -> PyResult<Node> {
    let Some(below) = depth.checked_sub(1) else { return Ok(Node::Unsure) };
    let kind = node.get_type().name()?;
    let (of, text_of) = (|name: &str| node.getattr(name), |name: &str| node.getattr(name)?.extract::<PyBackedStr>());
    let mut number = |name: &Bound<'_, PyAny>| PyResult::Ok(names.number(name_of(name)?));
    Ok(match kind.to_str()? {
        "Logic" => {
            let parts = of("parts")?.try_iter()?.map(|part| node_of(&part?, names, below)).collect::<PyResult<_>>()?;
            if &*text_of("word")? == "AND" { Node::All(parts) } else { Node::Any(parts) }
        }
        "Not" => Node::Not(Box::new(node_of(&of("of")?, names, below)?)),
        "Bare" => Node::Bare(number(&of("name")?)?),
        "In" => {
            let texts: HashSet<Vec<u8>> = of("texts")?.extract()?;
            if texts.iter().any(|text| is_mended(text)) {
                return Ok(Node::Unsure);
            }
            Node::In(number(&of("name")?)?, Texts::of(texts), of("negated")?.extract()?)
        }
        "IsNull" if is(&of("of")?, "Name")? => Node::Null(number(&of("of")?)?),
        "Search" if is(&of("of")?, "Name")? => match search_of(&text_of("word")?, of("text")?.extract()?) {
            None => Node::Unsure,
            Some(search) => Node::Search(number(&of("of")?)?, search, of("negated")?.extract()?),
        },
        "Equal" => compared(&of("left")?, Sign::Equal, &of("right")?, names)?,
        "Order" => {
            let (left, right) = (of("left")?, of("right")?);
            match sign_of(&text_of("sign")?) {
                None => Node::Unsure,
                Some(sign) if is(&right, "Name")? => compared(&right, sign.turned(), &left, names)?,
                Some(sign) => compared(&left, sign, &right, names)?,
            }
        }
        _ => Node::Unsure,
    })
}

fn is(node: &Bound<'_, PyAny>, kind: &str) -> PyResult<bool> {
    Ok(node.get_type().name()?.to_str()? == kind)
}

fn name_of(node: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    Ok([node.getattr("name")?.extract::<PyBackedStr>()?.as_bytes(), b"\x01"].concat())
}

/// A property against a constant.
fn compared(left: &Bound<'_, PyAny>, sign: Sign, right: &Bound<'_, PyAny>, names: &mut Names) -> PyResult<Node> {
    let minus = is(right, "Negate")?;
    let constant = if minus { right.getattr("of")? } else { right.clone() };
    if !is(left, "Name")? || !is(&constant, "Constant")? {
        return Ok(Node::Unsure);
    }
    let (kind, value) = (constant.getattr("kind")?.extract::<PyBackedStr>()?, constant.getattr("value")?);
    let number = match &*kind {
        "int" | "long" => {
            value.extract::<i64>().ok().and_then(|whole| if minus { whole.checked_neg() } else { Some(whole) }).map(Number::Whole)
        }
        "double" => value.extract::<f64>().ok().map(|double| Number::Double(if minus { -double } else { double })),
        "text" if sign == Sign::Equal && !minus => {
            let text: Vec<u8> = value.extract()?;
            return Ok(if is_mended(&text) { Node::Unsure } else { Node::Text(names.number(name_of(left)?), text) });
        }
        _ => None,
    };
    Ok(number.map_or(Ok::<_, PyErr>(Node::Unsure), |number| Ok(Node::Number(names.number(name_of(left)?), sign, number)))?)
}

fn sign_of(sign: &str) -> Option<Sign> {
    Some(match sign {
        ">" => Sign::Greater,
        ">=" => Sign::GreaterOrEqual,
        "<" => Sign::Less,
        "<=" => Sign::LessOrEqual,
        "=" => Sign::Equal,
        _ => return None,
    })
}

fn search_of(word: &str, text: &[u8]) -> Option<Search> {
    Some(match word {
        _ if text.is_empty() || is_mended(text) => return None,
        "CONTAINS" => Search::Contains(Box::new(filtering::finder(text))),
        "STARTSWITH" => Search::StartsWith(text.to_vec()),
        "ENDSWITH" => Search::EndsWith(text.to_vec()),
        _ => return None,
    })
}

/// Return what the records are found by that lie one behind another from `at` on; `data` begins at the offset `first`.
#[pyfunction]
fn record_keys<'py>(
    data: &Bound<'py, PyAny>,
    at: usize,
    first: i64,
    records_max: usize,
) -> PyResult<(usize, usize, Bound<'py, PyBytes>)> {
    let found = keys::record_keys(&Shared::of(data)?, at, first, records_max);
    Ok((found.count, found.at, PyBytes::new(data.py(), &found.packed)))
}

type QueueEntries<'py> = (&'py str, i32, i64, Bound<'py, PyBytes>);

/// Return how many bytes the records have that lie one behind another and are whole and usual, and what queues and the key index must
/// have of them; `data` begins at the offset `first`, and topics that are looked at `apart` end it.
#[pyfunction]
fn checked_records<'py>(
    data: &'py Bound<'py, PyBytes>,
    first: i64,
    apart: Vec<PyBackedBytes>,
) -> (usize, Vec<QueueEntries<'py>>, Bound<'py, PyBytes>) {
    let found = checking::checked_records(data.as_bytes(), first, &apart);
    (found.size, queue_entries(data, found.queues), PyBytes::new(data.py(), &found.keys))
}

/// Return where the records end that lie one behind another in a span and that a slave may append, offset and store time of the
/// last, what queues must have of them, and runs of those that change states of transactions; the span begins at the offset `first`.
#[pyfunction]
fn copied_records<'py>(
    data: &'py Bound<'py, PyBytes>,
    span: (usize, usize),
    first: i64,
    apart: Vec<PyBackedBytes>,
    topics: [PyBackedBytes; 2],
    size_max: usize,
) -> (usize, (i64, i64), Vec<QueueEntries<'py>>, Vec<TransactionRun<'py>>) {
    let bytes = data.as_bytes();
    let found = checking::copied_records(bytes.get(..span.1).unwrap_or(bytes), span.0, first, &apart, &topics, size_max);
    let runs = found.transactions.into_iter();
    let runs = runs.map(|run| (run.kind, run.store_s, run.group, run.numbers, PyBytes::new(data.py(), &run.entries)));
    (found.end, found.last, queue_entries(data, found.queues), runs.collect())
}

type TransactionRun<'py> = (i32, u32, i32, Vec<i64>, Bound<'py, PyBytes>);

fn queue_entries<'py>(data: &Bound<'py, PyBytes>, queues: Vec<checking::QueueEntries<'py>>) -> Vec<QueueEntries<'py>> {
    let entries = |entries: &[u8]| PyBytes::new(data.py(), entries);
    queues.iter().map(|queue| (queue.topic, queue.queue_id, queue.first, entries(&queue.entries))).collect()
}

type Entries<'py> = (Bound<'py, PyBytes>, Vec<i64>, Vec<i32>, usize);

/// Return the entries of packed keys that are entered from number `count` on, the places in the file of the slots that change,
/// rising, the newest entry of each, and how many of those had none.
#[pyfunction]
fn index_entries<'py>(slots: &Bound<'py, PyAny>, slots_at: i64, count: i32, begin_ms: i64, keys: &[u8]) -> PyResult<Entries<'py>> {
    let numbers = numbers_of(slots)?;
    let newest = |slot: usize| Some(numbers.get_item(slot).ok()?.extract::<i32>().ok()?.to_be());
    let mut found = keys::index_entries(numbers.len()?, newest, count, begin_ms, keys)
        .ok_or_else(|| PyZeroDivisionError::new_err("there are no slots"))?;
    for slot in &mut found.slots {
        *slot = slot.saturating_mul(4).saturating_add(slots_at);
    }
    Ok((PyBytes::new(slots.py(), &found.entries), found.slots, found.numbers, found.fresh))
}

/// Copy big-endian 32-bit numbers in, each at its own place, a multiple of four.
#[pyfunction]
fn put_numbers(into: &Bound<'_, PyAny>, places: Vec<i64>, numbers: Vec<i32>) -> PyResult<()> {
    let into = numbers_of(into)?;
    for (place, number) in places.into_iter().zip(numbers) {
        let at = usize::try_from(place).ok().filter(|at| at % 4 == 0);
        let at = at.ok_or_else(|| PyIndexError::new_err(format!("no number lies at {place}")))?;
        into.set_item(at / 4, number.to_be())?;
    }
    Ok(())
}

/// Bytes as numbers of 32 bits, which are still to be turned round.
fn numbers_of<'py>(bytes: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let view = PyMemoryView::from(bytes)?;
    let end = view.len()? & !3;
    slice_of(&view, 0, end)?.call_method1(intern!(bytes.py(), "cast"), ("i",))
}

#[pymodule]
mod halfmoon_native {
    #[pymodule_export]
    use super::{
        BulkFilter, Completions, HalfMessageCache, Messages, Reader, Signer, Verifier, batch_drafts, batch_items, checked_records,
        copied_records, crc_sum, crc32, decided_rows, done_answers, encode_batch, encode_properties, gather, head_json,
        index_entries, prepared_rows, pull_head, put_numbers, record_keys, record_rows, request_frame, row_columns, runs_of,
        send_answers, split_frames, stored_properties, tag_hash, tag_matches, whole_records,
    };

    #[pymodule_export]
    const INTERFACE: i64 = super::INTERFACE;

    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
