"""MLflow: the ONNX file as a model of MLflow, behind its scoring server."""

import os
import sys
import tempfile

import mlflow.onnx
import onnx
from classifier import FILE, HOST, PORT

folder = os.path.join(tempfile.mkdtemp(dir=os.getcwd()), "model")
mlflow.onnx.save_model(onnx.load(FILE), folder)
serve = ["models", "serve", "-m", folder, "-h", HOST, "-p", str(PORT), "--env-manager", "local", "-w", "1"]
os.execv(sys.executable, [sys.executable, "-m", "mlflow", *serve])
