"""Reads the pipeline dumps of AMD's Primus, a framework that trains models with Megatron-LM."""
