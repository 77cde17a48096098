//! Checkpoints, good and bad, into modules.

use std::{fs, path::Path};

use burn::{
    module::{Module, Param, ParamId},
    nn::{Linear, LinearConfig, LinearLayout, RmsNorm, RmsNormConfig},
    tensor::{Bool, DType, Int, Tensor, TensorData, backend::Backend},
};
use burn_autodiff::Autodiff;
use burn_flex::Flex;
use burn_offload::{
    ByteSize, OffloadError, OffloadPolicy, Offloaded, Placement,
    host::{FileError, MemoryKind},
    load::{Checkpoint, Convention, HeaderError, LoadError, Loader},
};
use safetensors::{Dtype, tensor::TensorView};
use serde_json::json;
use tempfile::{TempDir, tempdir};

type B = Offloaded<Flex>;

#[derive(Module, Debug)]
struct Net<B: Backend> {
    fc: Linear<B>,
    norm: RmsNorm<B>,
}

fn net<B: Backend>(layout: LinearLayout) -> Net<B> {
    let device = Default::default();
    Net {
        fc: LinearConfig::new(3, 3).with_layout(layout).init(&device),
        norm: RmsNormConfig::new(3).init(&device),
    }
}

fn all() -> OffloadPolicy {
    OffloadPolicy::device_budget(ByteSize::b(0))
}

const WEIGHT: [f32; 9] = [1., 2., 3., 4., 5., 6., 7., 8., 9.];

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Writes f32 tensors.
fn write(path: &Path, tensors: &[(&str, &[usize], &[f32])]) {
    let data: Vec<Vec<u8>> = tensors.iter().map(|(_, _, values)| bytes(values)).collect();
    let views = tensors.iter().zip(&data).map(|((name, shape, _), data)| {
        (
            *name,
            TensorView::new(Dtype::F32, shape.to_vec(), data).unwrap(),
        )
    });
    safetensors::serialize_to_file(views, None, path).unwrap();
}

const TENSORS: [(&str, &[usize], &[f32]); 3] = [
    ("fc.weight", &[3, 3], &WEIGHT),
    ("fc.bias", &[3], &[0.5, -0.5, 0.25]),
    ("norm.weight", &[3], &[1., 2., 4.]),
];

fn good() -> (TempDir, Checkpoint) {
    let folder = tempdir().unwrap();
    write(&folder.path().join("model.safetensors"), &TENSORS);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    (folder, checkpoint)
}

/// A file with this header, and so many bytes of data.
fn raw(header: &str, data: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.resize(file.len() + data, 0);
    file
}

fn open_bytes(bytes: &[u8]) -> LoadError {
    let folder = tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    fs::write(&path, bytes).unwrap();
    Checkpoint::open(&path).unwrap_err()
}

fn check_values<B: Backend>(net: &Net<B>) {
    let weight = net.fc.weight.val();
    assert_eq!(
        weight.into_data(),
        TensorData::new(vec![1f32, 4., 7., 2., 5., 8., 3., 6., 9.], [3, 3])
    );
    let input = Tensor::<B, 2>::from_floats([[1., 0., 2.]], &Default::default());
    let output = net.fc.forward(input).into_data();
    // Row i of the file's weight gives output i.
    assert_eq!(output, TensorData::new(vec![7.5f32, 15.5, 25.25], [1, 3]));
    assert_eq!(
        net.norm.gamma.val().into_data(),
        TensorData::new(vec![1f32, 2., 4.], [3])
    );
}

#[test]
fn offloaded_weights_are_read_from_the_file_and_resident_ones_are_the_same() {
    let (_folder, checkpoint) = good();
    for layout in [LinearLayout::Row, LinearLayout::Col] {
        let mut seen = Vec::new();
        let loader = Loader::new(&checkpoint).with_progress(|p| {
            seen.push((p.name.to_string(), p.memory, p.bytes, p.all_bytes));
        });
        let (loaded, report) = loader.load(net::<B>(layout), "net", &all()).unwrap();
        check_values(&loaded);
        assert_eq!(report.offloaded_bytes(), 60);
        let names: Vec<_> = report
            .parameters
            .iter()
            .map(|r| r.name.as_deref())
            .collect();
        let expected = ["net.fc.weight", "net.fc.bias", "net.norm.gamma"];
        assert_eq!(names, expected.map(Some));
        for record in &report.parameters {
            assert_eq!(record.memory, Some(MemoryKind::File), "{record:?}");
        }
        assert_eq!(seen.len(), 3);
        assert_eq!(
            seen[2],
            ("net.norm.gamma".into(), Some(MemoryKind::File), 60, 60)
        );

        let nothing = OffloadPolicy::nothing();
        let (loaded, report) = Loader::new(&checkpoint)
            .load(net::<B>(layout), "", &nothing)
            .unwrap();
        check_values(&loaded);
        assert_eq!(report.offloaded_bytes(), 0);
        assert_eq!(report.resident_bytes(), 60);

        // A made module, whose weight has its own way round by then.
        let made = net::<B>(layout);
        drop(made.fc.weight.val());
        let (loaded, _) = Loader::new(&checkpoint).load(made, "", &all()).unwrap();
        check_values(&loaded);
    }
}

#[test]
fn under_autodiff_gradients_reach_loaded_weights() {
    let (_folder, checkpoint) = good();
    let (net, _) = Loader::new(&checkpoint)
        .load(net::<Autodiff<B>>(LinearLayout::Row), "", &all())
        .unwrap();
    check_values(&net);
    let input = Tensor::<_, 2>::from_floats([[1., 0., 2.]], &Default::default());
    let grads = net.fc.forward(input).sum().backward();
    let grad = net.fc.weight.val().grad(&grads).unwrap().into_data();
    assert_eq!(
        grad,
        TensorData::new(vec![1f32, 1., 1., 0., 0., 0., 2., 2., 2.], [3, 3])
    );
}

#[test]
fn other_types_are_converted_into_host_memory() {
    let (_folder, checkpoint) = good();
    let loader = Loader::new(&checkpoint).with_dtype(DType::F16);
    let (net, report) = loader
        .load(net::<B>(LinearLayout::Row), "", &all())
        .unwrap();
    assert_eq!(net.fc.weight.val().dtype(), DType::F16);
    assert_eq!(report.offloaded_bytes(), 30);
    assert_eq!(report.parameters[0].memory, Some(MemoryKind::Pageable));
    let values: Vec<f32> = net.fc.weight.val().into_data().iter::<f32>().collect();
    assert_eq!(values, [1., 4., 7., 2., 5., 8., 3., 6., 9.]);
}

#[test]
fn a_budget_is_kept_while_loading() {
    let (_folder, checkpoint) = good();
    let policy = OffloadPolicy::host_budget(ByteSize::b(40));
    let (net, report) = Loader::new(&checkpoint)
        .load(net::<B>(LinearLayout::Row), "", &policy)
        .unwrap();
    // Other tests use the same device, and its budget: at most so much, and all values are right.
    assert!(report.offloaded_bytes() <= 40);
    check_values(&net);
    for record in &report.parameters {
        let offloaded = record.decision.placement == Placement::Offloaded;
        assert_eq!(offloaded, record.memory.is_some());
    }
}

#[test]
fn names_are_mapped_by_prefix_and_rules() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let tensors = [
        ("m.block_0.weight", TENSORS[0].1, TENSORS[0].2),
        ("m.block_0.bias", TENSORS[1].1, TENSORS[1].2),
        ("m.ln.weight", TENSORS[2].1, TENSORS[2].2),
        ("other.x", &[1][..], &[0.0][..]),
    ];
    write(&path, &tensors);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let loader = || {
        Loader::new(&checkpoint)
            .with_prefix("m")
            .with_rename(r"^block_\d+\.", "fc.")
    };
    let net = || net::<B>(LinearLayout::Row);
    let found = loader().load(net(), "", &all()).unwrap_err();
    assert!(
        matches!(&found, LoadError::Missing { name, .. } if name == "norm.gamma"),
        "{found}"
    );
    let (loaded, _) = loader()
        .with_rename("^ln", "norm")
        .load(net(), "", &all())
        .unwrap();
    check_values(&loaded);
    let found = loader()
        .with_rename(".*", "one")
        .load(net(), "", &all())
        .unwrap_err();
    assert!(matches!(found, LoadError::Renamed { .. }), "{found}");
    let found = loader()
        .with_rename("(", "")
        .load(net(), "", &all())
        .unwrap_err();
    assert!(matches!(found, LoadError::Pattern { .. }), "{found}");
}

#[test]
fn burns_own_names_and_shapes_are_taken_as_they_are() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let turned = [1., 4., 7., 2., 5., 8., 3., 6., 9.];
    let tensors = [
        ("fc.weight", TENSORS[0].1, &turned[..]),
        TENSORS[1],
        ("norm.gamma", TENSORS[2].1, TENSORS[2].2),
    ];
    write(&path, &tensors);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let (net, _) = Loader::new(&checkpoint)
        .with_convention(Convention::Burn)
        .load(net::<B>(LinearLayout::Row), "", &all())
        .unwrap();
    check_values(&net);
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let load = |tensors: &[(&str, &[usize], &[f32])]| {
        write(&path, tensors);
        let checkpoint = Checkpoint::open(&path).unwrap();
        let net = net::<B>(LinearLayout::Row);
        Loader::new(&checkpoint).load(net, "", &all()).unwrap_err()
    };
    let found = load(&TENSORS[..2]);
    assert!(
        matches!(&found, LoadError::Missing { name, .. } if name == "norm.gamma"),
        "{found}"
    );
    let found = load(&[TENSORS[0], TENSORS[1], TENSORS[2], ("x", &[1], &[1.])]);
    assert!(
        matches!(&found, LoadError::Unwanted { names, .. } if names == &["x"]),
        "{found}"
    );
    let found = load(&[TENSORS[0], ("fc.bias", &[1, 3], &[0.; 3]), TENSORS[2]]);
    assert!(
        matches!(&found, LoadError::Shape { name, found, wanted, .. }
            if name == "fc.bias" && found == &[1, 3] && wanted == &[3]),
        "{found}"
    );

    let text = json!({"fc.weight": {"dtype": "I64", "shape": [3, 3], "data_offsets": [0, 72]}});
    fs::write(&path, raw(&text.to_string(), 72)).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let found = Loader::new(&checkpoint)
        .load(net::<B>(LinearLayout::Row), "", &all())
        .unwrap_err();
    assert!(
        matches!(&found, LoadError::Dtype { name, .. } if name == "fc.weight"),
        "{found}"
    );

    let (_folder, checkpoint) = good();
    let policy = all().with_params(["nothing.of.that.name"]);
    let found = Loader::new(&checkpoint)
        .load(net::<B>(LinearLayout::Row), "", &policy)
        .unwrap_err();
    assert!(
        matches!(found, LoadError::Offload(OffloadError::Policy(_))),
        "{found}"
    );
}

#[test]
fn a_damaged_header_is_a_named_error() {
    let header = |bytes: &[u8]| match open_bytes(bytes) {
        LoadError::Header { source, .. } => *source,
        other => panic!("{other}"),
    };
    let one = |from: u64, to: u64| {
        json!({"a": {"dtype": "F32", "shape": [2], "data_offsets": [from, to]}}).to_string()
    };
    assert!(matches!(open_bytes(b""), LoadError::Empty { .. }));
    assert_eq!(header(b"1234567"), HeaderError::NoLength { len: 7 });
    assert!(matches!(
        header(&[255; 8]),
        HeaderError::TooLong { len: u64::MAX, .. }
    ));
    let long = 1000u64.to_le_bytes();
    assert_eq!(header(&long), HeaderError::Truncated { len: 1000, left: 0 });
    for text in ["", "[]", "{", "7", "\u{0}", r#"{"a":7}"#] {
        let found = header(&raw(text, 0));
        assert!(matches!(found, HeaderError::Json { .. }), "{text}: {found}");
    }
    for (from, to, data) in [(0, 8, 7), (8, 0, 8), (u64::MAX - 8, u64::MAX, 8)] {
        let found = header(&raw(&one(from, to), data));
        assert!(matches!(found, HeaderError::OutOfRange { .. }), "{found}");
    }
    let found = header(&raw(&one(0, 4), 4));
    assert!(
        matches!(found, HeaderError::Size { found: 4, .. }),
        "{found}"
    );
    for (from, data) in [(0, 9), (4, 12)] {
        let found = header(&raw(&one(from, from + 8), data));
        assert!(matches!(found, HeaderError::Hole { .. }), "{found}");
    }
    let huge = json!({"a": {"dtype": "F32", "shape": [u64::MAX, 4], "data_offsets": [0, 8]}});
    let found = header(&raw(&huge.to_string(), 8));
    assert!(matches!(found, HeaderError::Size { .. }), "{found}");
    let two = json!({
        "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
    });
    let found = header(&raw(&two.to_string(), 12));
    assert!(matches!(found, HeaderError::Overlap { .. }), "{found}");
    let entry = r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
    let found = header(&raw(&format!("{{{entry},{entry}}}"), 8));
    assert_eq!(found, HeaderError::Duplicate { name: "a".into() });
}

#[test]
fn paths_that_are_no_checkpoint_are_named_errors() {
    let folder = tempdir().unwrap();
    let at = folder.path();
    let found = Checkpoint::open(at).unwrap_err();
    assert!(matches!(found, LoadError::NoWeights { .. }), "{found}");
    let found = Checkpoint::open(at.join("none.safetensors")).unwrap_err();
    assert!(
        matches!(found, LoadError::File(FileError::Io { .. })),
        "{found}"
    );
    fs::create_dir(at.join("model.safetensors")).unwrap();
    let found = Checkpoint::open(at).unwrap_err();
    assert!(
        matches!(found, LoadError::File(FileError::NotAFile { .. })),
        "{found}"
    );
}

#[cfg(unix)]
#[test]
fn a_file_without_permission_is_a_named_error() {
    use std::os::unix::fs::PermissionsExt;

    let (folder, _) = good();
    let path = folder.path().join("model.safetensors");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    match Checkpoint::open(&path) {
        Err(LoadError::File(FileError::Io { source, .. })) => {
            assert_eq!(source.kind(), std::io::ErrorKind::PermissionDenied);
        }
        // Root may read all files.
        Ok(_) => assert!(fs::File::open(&path).is_ok(), "only if the system lets us"),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_file_that_shrinks_before_it_is_loaded_is_a_named_error() {
    let (folder, checkpoint) = good();
    let path = folder.path().join("model.safetensors");
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(30).unwrap();
    let found = Loader::new(&checkpoint)
        .load(net::<B>(LinearLayout::Row), "", &all())
        .unwrap_err();
    assert!(
        matches!(found, LoadError::File(FileError::Changed { now: 30, .. })),
        "{found}"
    );
}

#[test]
fn shards_are_one_checkpoint_and_an_index_that_is_wrong_is_a_named_error() {
    let folder = tempdir().unwrap();
    let at = folder.path();
    write(&at.join("a.safetensors"), &TENSORS[..1]);
    write(&at.join("b.safetensors"), &TENSORS[1..]);
    let index = |text: &str| {
        fs::write(at.join("model.safetensors.index.json"), text).unwrap();
        Checkpoint::open(at)
    };
    let map = |weight_map: serde_json::Value| json!({"weight_map": weight_map}).to_string();
    let whole = json!({
        "fc.weight": "a.safetensors", "fc.bias": "b.safetensors", "norm.weight": "b.safetensors",
    });
    let checkpoint = index(&map(whole)).unwrap();
    let (net, _) = Loader::new(&checkpoint)
        .load(net::<B>(LinearLayout::Row), "", &all())
        .unwrap();
    check_values(&net);

    let twice = r#"{"weight_map":{"fc.weight":"a.safetensors","fc.weight":"b.safetensors"}}"#;
    for text in [
        "",
        "{",
        "[]",
        r#"{"weight_map":7}"#,
        r#"{"weight_map":{}}"#,
        twice,
    ] {
        let found = index(text).unwrap_err();
        assert!(
            matches!(found, LoadError::Index { .. } | LoadError::Empty { .. }),
            "{text}: {found}"
        );
    }
    for file in ["../a.safetensors", "/etc/passwd", "", "."] {
        let found = index(&map(json!({"fc.weight": file}))).unwrap_err();
        assert!(
            matches!(found, LoadError::IndexPath { .. }),
            "{file}: {found}"
        );
    }
    let found = index(&map(json!({"fc.weight": "c.safetensors"}))).unwrap_err();
    assert!(matches!(found, LoadError::NoShard { .. }), "{found}");
    let found = index(&map(json!({"gone": "a.safetensors"}))).unwrap_err();
    assert!(matches!(found, LoadError::NotInShard { .. }), "{found}");
    let found = index(&map(json!({"fc.bias": "b.safetensors"}))).unwrap_err();
    assert!(matches!(found, LoadError::NotInIndex { .. }), "{found}");
}

/// Every kind of parameter that a file can have, and one that two fields share.
#[derive(Module, Debug)]
struct Kinds<B: Backend> {
    ids: Param<Tensor<B, 1, Int>>,
    mask: Param<Tensor<B, 2, Bool>>,
    table: Param<Tensor<B, 2>>,
    head: Param<Tensor<B, 2>>,
}

fn kinds<B: Backend>() -> Kinds<B> {
    let device = Default::default();
    let table = Param::from_tensor(Tensor::zeros([2, 3], &device));
    Kinds {
        ids: Param::initialized(ParamId::new(), Tensor::zeros([4], &device)),
        mask: Param::initialized(
            ParamId::new(),
            Tensor::<B, 2, Int>::zeros([2, 2], &device).bool(),
        ),
        head: table.clone(),
        table,
    }
}

#[test]
fn integers_booleans_and_tied_parameters_are_loaded_and_placed() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let ids: Vec<u8> = [7i32, -1, 0, 5]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    let (mask, table) = ([1u8, 0, 0, 1], bytes(&WEIGHT[..6]));
    let view = |dtype, shape: &[usize], data| TensorView::new(dtype, shape.to_vec(), data).unwrap();
    let mut tensors = vec![
        ("ids", view(Dtype::I32, &[4], &ids)),
        ("mask", view(Dtype::BOOL, &[2, 2], &mask)),
        ("table", view(Dtype::F32, &[2, 3], &table)),
    ];
    let other = bytes(&WEIGHT[3..]);
    for head in [Some(&other), Some(&table), None] {
        tensors.truncate(3);
        tensors.extend(head.map(|head| ("head", view(Dtype::F32, &[2, 3], head))));
        let tied = head != Some(&other);
        safetensors::serialize_to_file(tensors.clone(), None, &path).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        for (policy, place) in [
            (all(), Placement::Offloaded),
            (OffloadPolicy::nothing(), Placement::Resident),
        ] {
            let loaded = Loader::new(&checkpoint)
                .with_convention(Convention::Burn)
                .load(kinds::<B>(), "", &policy);
            let (module, report) = loaded.unwrap();
            assert!(
                report
                    .parameters
                    .iter()
                    .all(|p| p.decision.placement == place),
                "{report}"
            );
            // The bytes of the two are counted once where they are the same.
            assert_eq!(
                report.offloaded_bytes() + report.resident_bytes(),
                16 + 4 + 24 + if tied { 0 } else { 24 },
                "{report}"
            );
            let head = report
                .parameters
                .iter()
                .find(|p| p.name.as_deref() == Some("head"));
            let shares = head.and_then(|head| head.shares.as_deref());
            assert_eq!(shares, tied.then_some("table"), "{report}");
            let ids = module.ids.val().into_data();
            assert_eq!(ids.iter::<i32>().collect::<Vec<_>>(), [7, -1, 0, 5]);
            let mask = module.mask.val().into_data();
            assert_eq!(
                mask.iter::<bool>().collect::<Vec<_>>(),
                [true, false, false, true]
            );
            let table = TensorData::new(WEIGHT[..6].to_vec(), [2, 3]);
            assert_eq!(module.table.val().into_data(), table);
            let head = if tied {
                table
            } else {
                TensorData::new(WEIGHT[3..].to_vec(), [2, 3])
            };
            assert_eq!(module.head.val().into_data(), head);
        }
    }
}
