// Express and ONNX Runtime in Node: numbers in JSON, the label out.
const express = require("express");
const ort = require("onnxruntime-node");

async function main() {
  const session = await ort.InferenceSession.create(process.env.MODEL);
  const app = express();
  app.use(express.json({ limit: "5mb" }));
  app.post("/predict", async (request, response) => {
    const values = request.body.x.flat(3);
    const input = new ort.Tensor("float32", Float32Array.from(values), [1, 1, 8, 8]);
    const { logits } = await session.run({ input });
    response.json({ label: logits.data.indexOf(Math.max(...logits.data)) });
  });
  app.listen(Number(process.env.PORT), "127.0.0.1");
}

main();
