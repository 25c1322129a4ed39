@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read> b2: array<f32>;
@group(0) @binding(3) var<storage, read_write> b3: array<f32>;
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
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>,
        @builtin(local_invocation_id) local: vec3<u32>) {
  zero = group.z;  // a grid has one layer
  let i_block = i32(group.x + group.y * 65535u);
  if (i_block < 256i) {
    let i_thread = i32(local.x);
    if (i_thread < 256i) {
      let v1 = i_block * 256i;
      let v2 = v1 + i_thread;
      let v3 = b0[v2];
      let v4 = b1[v2];
      let v5 = exact(v3 * v4);
      let v6 = b2[v2];
      let v7 = exact(v5 + v6);
      let v8 = abs(v7);
      let v9 = truth(v8 < 5.500000119e-01f);
      let v10 = exact(v8 * v8);
      let v11 = exact(v8 * v10);
      let v12 = exact(-6.282533985e-03f * v10);
      let v13 = exact(v12 + 2.107780427e-02f);
      let v14 = exact(v13 * v10);
      let v15 = exact(v14 + -5.385386944e-02f);
      let v16 = exact(v15 * v10);
      let v17 = exact(v16 + 1.333260238e-01f);
      let v18 = exact(v17 * v10);
      let v19 = exact(v18 + -3.333331943e-01f);
      let v20 = exact(v11 * v19);
      let v21 = exact(v8 + v20);
      let v22 = exact(v8 + v8);
      let v23 = min_f32(f32(v22), f32(8.000000000e+01f));
      let v24 = exact(v23 * 1.442695022e+00f);
      let v25 = round(v24);
      let v26 = exact(v25 * 6.931457520e-01f);
      let v27 = exact(v23 - v26);
      let v28 = exact(v25 * 1.428606765e-06f);
      let v29 = exact(v27 - v28);
      let v30 = exact(v29 * v29);
      let v31 = exact(1.394650782e-03f * v29);
      let v32 = exact(v31 + 8.366573602e-03f);
      let v33 = exact(v32 * v29);
      let v34 = exact(v33 + 4.166628048e-02f);
      let v35 = exact(v34 * v29);
      let v36 = exact(v35 + 1.666654348e-01f);
      let v37 = exact(v36 * v29);
      let v38 = exact(v37 + 5.000000000e-01f);
      let v39 = exact(v30 * v38);
      let v40 = exact(v29 + v39);
      let v41 = exact(1.000000000e+00f + v40);
      let v42 = exact(v25 + 1.258291200e+07f);
      let v43 = bitcast<i32>(v42);
      let v44 = v43 - 1262485504i;
      let v45 = v44 + 127i;
      let v46 = v45 << 23u;
      let v47 = bitcast<f32>(v46);
      let v48 = exact(v41 * v47);
      let v49 = exact(v48 + 1.000000000e+00f);
      let v50 = exact(2.000000000e+00f / v49);
      let v51 = exact(1.000000000e+00f - v50);
      let v52 = select(v51, v21, v9);
      let v53 = bitcast<i32>(v52);
      let v54 = v53 & 2147483647i;
      let v55 = bitcast<i32>(v7);
      let v56 = v55 & (-2147483647 - 1);
      let v57 = v54 | v56;
      let v58 = bitcast<f32>(v57);
      b3[v2] = v58;
    }
  }
}
