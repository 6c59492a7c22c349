//! Control messages about published files; the others are in [`crate::control`], which has these as well.

use crate::codec::{List, Name, Text, wire_struct};
use crate::ids::*;
use crate::limits::*;
use crate::nodes::NodeInfo;
use sha2::{Digest, Sha256};

wire_struct! {
    /// A run of a published file's bytes, in file order.
    ///
    /// Its handle is bound to the name of the file ([`NamedExtent::bind`]): whoever has the extents of one name under
    /// another has no right to the bytes, and the node, which knows the handle as it was made, refuses to read them.
    NamedExtent {
        /// Which node.
        node: NodeId,
        /// In which life.
        incarnation: Incarnation,
        /// Which region.
        region: RegionIndex,
        /// The sealed region's epoch.
        epoch: Epoch,
        /// The right to read it, bound to the name.
        handle: Handle,
        /// First byte in the region.
        region_offset: u64,
        /// Bytes of the run.
        bytes: u64,
    }
}

impl NamedExtent {
    /// Binds the handle to the name of the file; if it is bound to that name, frees it again.
    pub fn bind(&mut self, name: &Name) {
        let mut first = [0; 16];
        first.copy_from_slice(&Sha256::digest(name.as_bytes())[..16]);
        self.handle.0 ^= u128::from_le_bytes(first);
    }
}

wire_struct! {
    /// Gives sealed extents to a name: one transaction of the catalog.
    Publish {
        /// Which session sealed them.
        session: SessionId,
        /// Its secret.
        secret: Secret,
        /// The name.
        name: Name,
        /// The file's class.
        class: FileClass,
        /// Whether a file of this name is replaced.
        replace: bool,
        /// The file whose bytes these are, moved to other nodes: it keeps its id, and must still have the name.
        /// 0: a new file.
        moved: FileId,
        /// Where its bytes are.
        extents: List<NamedExtent, NAMED_EXTENTS_MAX>,
    }
}

wire_struct! {
    /// The name now owns the bytes.
    Published {
        /// The file's id.
        file: FileId,
    }
}

wire_struct! {
    /// A published file by name.
    ByName {
        /// The name.
        name: Name,
    }
}

wire_struct! {
    /// Where a published file's bytes are.
    Opened {
        /// The file's id.
        file: FileId,
        /// Its class.
        class: FileClass,
        /// Where its bytes are, in file order.
        extents: List<NamedExtent, NAMED_EXTENTS_MAX>,
        /// The nodes named in the extents.
        nodes: List<NodeInfo, NODES_MAX>,
    }
}

wire_struct! {
    /// Gives a published file another name.
    Rename {
        /// Its name now.
        from: Name,
        /// Its name then; must be free.
        to: Name,
    }
}

wire_struct! {
    /// Asks for a page of names in their order.
    ListNames {
        /// Only names that begin so.
        prefix: Text,
        /// Only names behind this one; empty: from the start.
        after: Text,
    }
}

wire_struct! {
    /// A published file in a listing.
    NameInfo {
        /// Its name.
        name: Name,
        /// Its id.
        file: FileId,
        /// Its class.
        class: FileClass,
        /// Its length.
        bytes: u64,
        /// Whether a node that held some of it is gone.
        lost: bool,
        /// Whose it is.
        tenant: Name,
    }
}

wire_struct! {
    /// A page of names.
    Names {
        /// In order.
        names: List<NameInfo, NAMES_PAGE_MAX>,
        /// Whether more follow.
        more: bool,
    }
}
