@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
var<private> zero: u32;
fn exact(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ zero); }
fn truth(x: bool) -> bool { return (u32(x) ^ zero) != 0u; }
fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn min_f32(x: f32, y: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if (is_nan(y)) { return y; }
  if (x == y) { return bitcast<f32>(bitcast<u32>(x) | bitcast<u32>(y)); }
  return select(y, x, x < y);
}
fn max_f32(x: f32, y: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if (is_nan(y)) { return y; }
  if (x == y) { return bitcast<f32>(bitcast<u32>(x) & bitcast<u32>(y)); }
  return select(y, x, x > y);
}
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>,
        @builtin(local_invocation_id) local: vec3<u32>) {
  zero = group.z;  // a grid has one layer
  let i_block = i32(group.x + group.y * 65535u);
  if (i_block < 128i) {
    let i_thread = i32(local.x);
    if (i_thread < 256i) {
      let v1 = i_block * 256i;
      let v2 = v1 + i_thread;
      let v3 = b0[v2];
      let v4 = exact(5.000000000e-01f * v3);
      let v5 = exact(v3 * 7.071067691e-01f);
      let v6 = abs(v5);
      let v7 = truth(v6 < 1.000000000e+00f);
      let v8 = exact(v6 * v6);
      let v9 = min_f32(f32(v8), f32(1.000000000e+00f));
      let v10 = exact(7.889112021e-05f * v9);
      let v11 = exact(v10 + -8.020837558e-04f);
      let v12 = exact(v11 * v9);
      let v13 = exact(v12 + 5.189534742e-03f);
      let v14 = exact(v13 * v9);
      let v15 = exact(v14 + -2.685444430e-02f);
      let v16 = exact(v15 * v9);
      let v17 = exact(v16 + 1.128360033e-01f);
      let v18 = exact(v17 * v9);
      let v19 = exact(v18 + -3.761262596e-01f);
      let v20 = exact(v19 * v9);
      let v21 = exact(v20 + 1.283791661e-01f);
      let v22 = exact(v6 * v21);
      let v23 = exact(v6 + v22);
      let v24 = max_f32(f32(v6), f32(1.000000000e+00f));
      let v25 = min_f32(f32(v24), f32(4.000000000e+00f));
      let v26 = exact(v25 - 1.000000000e+00f);
      let v27 = exact(1.855381124e-04f * v26);
      let v28 = exact(v27 + -1.826027874e-03f);
      let v29 = exact(v28 * v26);
      let v30 = exact(v29 + 9.890710935e-03f);
      let v31 = exact(v30 * v26);
      let v32 = exact(v31 + -4.150058329e-02f);
      let v33 = exact(v32 * v26);
      let v34 = exact(v33 + -8.431183696e-01f);
      let v35 = exact(v34 * v26);
      let v36 = exact(v35 + -2.638966799e+00f);
      let v37 = exact(v36 * v26);
      let v38 = exact(v37 + -1.849605560e+00f);
      let v39 = max_f32(f32(v38), f32(-1.050000000e+02f));
      let v40 = min_f32(f32(v39), f32(9.000000000e+01f));
      let v41 = exact(v40 * 1.442695022e+00f);
      let v42 = round(v41);
      let v43 = exact(v42 * 6.931457520e-01f);
      let v44 = exact(v40 - v43);
      let v45 = exact(v42 * 1.428606765e-06f);
      let v46 = exact(v44 - v45);
      let v47 = exact(v46 * v46);
      let v48 = exact(1.394650782e-03f * v46);
      let v49 = exact(v48 + 8.366573602e-03f);
      let v50 = exact(v49 * v46);
      let v51 = exact(v50 + 4.166628048e-02f);
      let v52 = exact(v51 * v46);
      let v53 = exact(v52 + 1.666654348e-01f);
      let v54 = exact(v53 * v46);
      let v55 = exact(v54 + 5.000000000e-01f);
      let v56 = exact(v47 * v55);
      let v57 = exact(v46 + v56);
      let v58 = exact(1.000000000e+00f + v57);
      let v59 = exact(v42 + 1.258291200e+07f);
      let v60 = bitcast<i32>(v59);
      let v61 = v60 - 1262485504i;
      let v62 = v61 >> 1u;
      let v63 = v62 + 127i;
      let v64 = v63 << 23u;
      let v65 = bitcast<f32>(v64);
      let v66 = exact(v58 * v65);
      let v67 = v61 - v62;
      let v68 = v67 + 127i;
      let v69 = v68 << 23u;
      let v70 = bitcast<f32>(v69);
      let v71 = exact(v66 * v70);
      let v72 = exact(1.000000000e+00f - v71);
      let v73 = select(v72, v23, v7);
      let v74 = bitcast<i32>(v73);
      let v75 = v74 & 2147483647i;
      let v76 = bitcast<i32>(v5);
      let v77 = v76 & (-2147483647 - 1);
      let v78 = v75 | v77;
      let v79 = bitcast<f32>(v78);
      let v80 = exact(1.000000000e+00f + v79);
      let v81 = exact(v4 * v80);
      b1[v2] = v81;
    }
  }
}
