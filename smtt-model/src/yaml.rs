//! YAML of files that others write, read into types by serde.
//!
//! The events of the parser become a tree of small nodes, and types are read from that tree: the program of workers has
//! the code of one light deserializer. Errors name their line. The depth, the number of nodes and the bytes of their texts
//! have bounds, also those of aliases, so that a short file cannot become a large tree.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use granit_parser::{Event, Parser, ScalarStyle, Tag};
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{self, DeserializeOwned, Deserializer, IntoDeserializer, Unexpected, Visitor};

/// Lists and mappings inside each other at most.
const DEPTH_MAX: usize = 32;
/// Nodes at most: those of the text, and each copy that an anchor or an alias makes.
const NODES_MAX: usize = 250_000;
/// Bytes of their texts at most, which each copy has anew.
const BYTES_MAX: usize = 4 << 20;
/// The prefix of the tags of YAML itself, which is written `!!`.
const CORE: &str = "tag:yaml.org,2002:";

/// Why a text is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YamlError {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong in that line. One line of text.
    pub message: String,
}

impl YamlError {
    fn new(line: usize, message: impl fmt::Display) -> Self {
        let message = message.to_string();
        let message = message.lines().next().unwrap_or_default().to_owned();
        Self { line, message }
    }

    /// The same error, in this line where no inner node named its own.
    fn at(mut self, line: usize) -> Self {
        if self.line == 0 {
            self.line = line;
        }
        self
    }
}

impl fmt::Display for YamlError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for YamlError {}

impl de::Error for YamlError {
    fn custom<Message: fmt::Display>(message: Message) -> Self {
        Self::new(0, message)
    }
}

/// Reads the one document of a text. A text without a document is null.
///
/// # Errors
/// When the text is no YAML, exceeds the bounds, or has another form than the type.
pub fn from_str<Type: DeserializeOwned>(text: &str) -> Result<Type, YamlError> {
    Type::deserialize(tree(text)?).map_err(|error| error.at(1))
}

/// How large a node is, with those below it.
#[derive(Clone, Copy)]
struct Extent {
    nodes: usize,
    /// Bytes of texts.
    bytes: usize,
    /// Lists and mappings inside each other.
    depth: usize,
}

impl Extent {
    const fn of_text(text: &str) -> Self {
        Self {
            nodes: 1,
            bytes: text.len(),
            depth: 0,
        }
    }

    /// Of a list or a mapping without entries.
    const EMPTY: Self = Self {
        nodes: 1,
        bytes: 0,
        depth: 1,
    };

    /// With one more entry.
    fn with(self, entry: Self) -> Self {
        Self {
            nodes: self.nodes + entry.nodes,
            bytes: self.bytes + entry.bytes,
            depth: self.depth.max(entry.depth + 1),
        }
    }
}

#[derive(Clone, Debug)]
struct Node {
    /// Line, from 1.
    line: usize,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// A text; only one that is plain can be null.
    Scalar {
        text: String,
        is_plain: bool,
    },
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
}

impl Node {
    const fn scalar(line: usize, text: String, is_plain: bool) -> Self {
        let kind = Kind::Scalar { text, is_plain };
        Self { line, kind }
    }

    fn is_null(&self) -> bool {
        let is_null = |text: &str| matches!(text, "" | "~" | "null" | "Null" | "NULL");
        matches!(&self.kind, Kind::Scalar { text, is_plain: true } if is_null(text))
    }

    fn extent(&self) -> Extent {
        let add = |sum: Extent, node: &Self| sum.with(node.extent());
        match &self.kind {
            Kind::Scalar { text, .. } => Extent::of_text(text),
            Kind::List(items) => items.iter().fold(Extent::EMPTY, add),
            Kind::Map(pairs) => pairs
                .iter()
                .fold(Extent::EMPTY, |sum, (key, value)| add(add(sum, key), value)),
        }
    }
}

/// A list or a mapping whose end has not come.
struct Open {
    node: Node,
    anchor: usize,
    /// Keys of a mapping.
    seen: BTreeSet<String>,
    /// A key whose value has not come.
    key: Option<Node>,
    /// Entries that `<<` brings, for keys that the mapping itself lacks.
    merged: Vec<(Node, Node)>,
}

impl Open {
    /// The node with all of its entries.
    fn closed(mut self) -> (Node, usize) {
        if let Kind::Map(pairs) = &mut self.node.kind {
            for (key, value) in self.merged {
                if let Kind::Scalar { text, .. } = &key.kind
                    && self.seen.insert(text.clone())
                {
                    pairs.push((key, value));
                }
            }
        }
        (self.node, self.anchor)
    }

    /// Adds the next key or value.
    fn add(&mut self, node: Node) -> Result<(), YamlError> {
        let line = node.line;
        let pairs = match &mut self.node.kind {
            Kind::List(items) => {
                items.push(node);
                return Ok(());
            }
            Kind::Map(pairs) => pairs,
            Kind::Scalar { .. } => return Err(YamlError::new(line, "a text has no entries")),
        };
        let Some(key) = self.key.take() else {
            let Kind::Scalar { text, is_plain } = &node.kind else {
                return Err(YamlError::new(line, "a key must be text"));
            };
            if !self.seen.insert(text.clone()) {
                return Err(YamlError::new(line, format_args!("duplicate key {text:?}")));
            }
            if *is_plain && text == "<<" {
                self.seen.remove(text);
            }
            self.key = Some(node);
            return Ok(());
        };
        if !matches!(&key.kind, Kind::Scalar { text, is_plain: true } if text == "<<") {
            pairs.push((key, node));
            return Ok(());
        }
        let sources = match node.kind {
            Kind::List(items) => items,
            _ => vec![node],
        };
        for source in sources {
            let Kind::Map(pairs) = source.kind else {
                return Err(YamlError::new(line, "<< needs a mapping"));
            };
            self.merged.extend(pairs);
        }
        Ok(())
    }
}

/// The nodes that are read so far.
#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    anchors: BTreeMap<usize, Node>,
    nodes: usize,
    bytes: usize,
    root: Option<Node>,
}

impl Builder {
    fn count(&mut self, line: usize, more: Extent) -> Result<(), YamlError> {
        self.nodes += more.nodes;
        self.bytes += more.bytes;
        if self.nodes > NODES_MAX {
            let many = format_args!("more than {NODES_MAX} values");
            return Err(YamlError::new(line, many));
        }
        if self.bytes > BYTES_MAX {
            let large = format_args!("more than {BYTES_MAX} bytes of texts, with those of aliases");
            return Err(YamlError::new(line, large));
        }
        if self.open.len() + more.depth > DEPTH_MAX {
            let deep = format_args!("more than {DEPTH_MAX} lists and mappings inside each other");
            return Err(YamlError::new(line, deep));
        }
        Ok(())
    }

    fn begin(&mut self, line: usize, kind: Kind, anchor: usize) -> Result<(), YamlError> {
        self.count(line, Extent::EMPTY)?;
        self.open.push(Open {
            node: Node { line, kind },
            anchor,
            seen: BTreeSet::new(),
            key: None,
            merged: Vec::new(),
        });
        Ok(())
    }

    fn end(&mut self) -> Result<(), YamlError> {
        match self.open.pop() {
            Some(open) => {
                let (node, anchor) = open.closed();
                self.put(node, anchor)
            }
            None => Ok(()),
        }
    }

    fn put(&mut self, node: Node, anchor: usize) -> Result<(), YamlError> {
        if anchor != 0 {
            self.count(node.line, node.extent())?;
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut() {
            Some(open) => open.add(node),
            None => {
                self.root = Some(node);
                Ok(())
            }
        }
    }

    /// A node with this tag: whether a text may be null.
    fn is_plain(line: usize, tag: Option<&Tag>) -> Result<bool, YamlError> {
        match tag.map(|tag| (tag.handle(), tag.suffix())) {
            None => Ok(true),
            Some((CORE, suffix)) => match suffix {
                "str" => Ok(false),
                "null" | "bool" | "int" | "float" | "seq" | "map" => Ok(true),
                other => Err(YamlError::new(line, format_args!("no tag !!{other}"))),
            },
            Some(("" | "!", "" | "!")) => Ok(false),
            Some((handle, suffix)) => {
                let message = format_args!("no tag {handle}{suffix}");
                Err(YamlError::new(line, message))
            }
        }
    }

    fn event(&mut self, line: usize, event: Event<'_>) -> Result<(), YamlError> {
        match event {
            Event::DocumentStart(..) if self.root.is_some() => {
                Err(YamlError::new(line, "more than one document"))
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.count(line, Extent::of_text(&text))?;
                let is_plain = Self::is_plain(line, tag.as_deref())?;
                let is_plain = is_plain && style == ScalarStyle::Plain;
                self.put(Node::scalar(line, text.into_owned(), is_plain), anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                Self::is_plain(line, tag.as_deref())?;
                self.begin(line, Kind::List(Vec::new()), anchor)
            }
            Event::MappingStart(_, anchor, tag) => {
                Self::is_plain(line, tag.as_deref())?;
                self.begin(line, Kind::Map(Vec::new()), anchor)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => {
                let node = self.anchors.get(&anchor);
                let inside = || YamlError::new(line, "an alias of what it is in");
                let extent = node.ok_or_else(inside)?.extent();
                self.count(line, extent)?;
                match self.anchors.get(&anchor).cloned() {
                    Some(node) => self.put(node, 0),
                    None => Err(inside()),
                }
            }
            _ => Ok(()),
        }
    }
}

/// The nodes of a text's one document.
fn tree(text: &str) -> Result<Node, YamlError> {
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) =
            event.map_err(|error| YamlError::new(error.marker().line(), error.info()))?;
        builder.event(span.start.line(), event)?;
    }
    let null = || Node::scalar(1, String::new(), true);
    Ok(builder.root.unwrap_or_else(null))
}

impl IntoDeserializer<'_, YamlError> for Node {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// Texts are strings, whatever they look like, but for null; the types decide. Numbers are not read.
impl<'de> Deserializer<'de> for Node {
    type Error = YamlError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, YamlError> {
        let line = self.line;
        let is_null = self.is_null();
        let value = match self.kind {
            Kind::Scalar { .. } if is_null => visitor.visit_unit(),
            Kind::Scalar { text, .. } => visitor.visit_string(text),
            Kind::List(items) => visitor.visit_seq(SeqDeserializer::new(items.into_iter())),
            Kind::Map(pairs) => visitor.visit_map(MapDeserializer::new(pairs.into_iter())),
        };
        value.map_err(|error: YamlError| error.at(line))
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, YamlError> {
        if self.is_null() {
            let error: YamlError = de::Error::invalid_type(Unexpected::Other("null"), &visitor);
            return Err(error.at(self.line));
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, YamlError> {
        self.deserialize_string(visitor)
    }

    /// As in YAML 1.1, which the other readers of these files follow.
    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, YamlError> {
        let Kind::Scalar { text, .. } = &self.kind else {
            return self.deserialize_any(visitor);
        };
        let is = |names: [&str; 4]| names.iter().any(|name| text.eq_ignore_ascii_case(name));
        if is(["true", "yes", "on", "y"]) {
            return visitor.visit_bool(true);
        }
        if is(["false", "no", "off", "n"]) {
            return visitor.visit_bool(false);
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, YamlError> {
        if self.is_null() {
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    /// Null is an empty list.
    fn deserialize_seq<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, YamlError> {
        if self.is_null() {
            self.kind = Kind::List(Vec::new());
        }
        self.deserialize_any(visitor)
    }

    /// Null is an empty mapping.
    fn deserialize_map<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, YamlError> {
        if self.is_null() {
            self.kind = Kind::Map(Vec::new());
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, YamlError> {
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, YamlError> {
        let line = self.line;
        match self.kind {
            Kind::Scalar { text, .. } => {
                let value = visitor.visit_enum(text.into_deserializer());
                value.map_err(|error: YamlError| error.at(line))
            }
            _ => self.deserialize_any(visitor),
        }
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct newtype_struct tuple
        tuple_struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests;
