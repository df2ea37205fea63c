-- gpt_xl_stage3.lua - trains a GPT-2 on text, from scratch or from a saved one, as Hugging Face's run_clm_no_trainer.py
-- does: ztrain recipes/gpt_xl_stage3.lua --preset tiny --train_file book.txt
local zt = require "ztrain"

local args = zt.args({
  {"preset", "tiny", "sizes and hyperparameters; xl is GPT-2 XL, 1.5 billion parameters"},
  {"model_name_or_path", nil, "folder of a model to go on from; else one is made"},
  {"config_name", nil, "config.json of the model to make, instead of the preset's"},
  {"tokenizer_name", nil, "folder of a tokenizer; else the model's, else a BPE is trained on the text"},
  {"train_file", nil, "text to train on"},
  {"validation_file", nil, "text to evaluate on; else a part of train_file is kept for it"},
  {"validation_split_percentage", 5, "that part"},
  {"per_device_eval_batch_size", 8}, {"max_grad_norm", 1.0}, {"seed", 42}, {"logging_steps", 10},
  {"num_train_epochs", 1},
  {"max_train_steps", nil, "instead of num_train_epochs", type = "integer"},
  {"gradient_checkpointing", false, "less memory for more time"},
  {"checkpointing_steps", nil, "a checkpoint every so many steps, or each 'epoch'"},
  {"resume_from_checkpoint", nil, "a checkpoint to go on from; 'latest': the newest in output_dir"},
  {"output_dir", "out/gpt_xl_stage3"},
}, {about = "Trains a GPT-2 on text.", presets = {
  tiny = {n_layer = 3, n_embd = 192, n_head = 6, vocab_size = 2048, block_size = 128,
    per_device_train_batch_size = 16, learning_rate = 3e-3, weight_decay = 0.1,
    lr_scheduler_type = "cosine", num_warmup_steps = 20},
  small = {n_layer = 12, n_embd = 768, n_head = 12, vocab_size = 50257, block_size = 256,
    per_device_train_batch_size = 4, learning_rate = 6e-4, weight_decay = 0.1,
    lr_scheduler_type = "cosine", num_warmup_steps = 100},
  xl = {n_layer = 48, n_embd = 1600, n_head = 25, vocab_size = 50257, block_size = 128,
    per_device_train_batch_size = 16, learning_rate = 5e-4, weight_decay = 0.0,
    lr_scheduler_type = "WarmupDecayLR", num_warmup_steps = 0},
}})
if not args.train_file then error("--train_file is needed", 0) end
zt.seed(args.seed)
local acc = zt.accelerator {project_dir = args.output_dir}

-- tokenizer, text, model
local folder = args.tokenizer_name or args.model_name_or_path
local tokenizer = folder and zt.tokenizer.from_pretrained(folder)
  or zt.tokenizer.train_bpe({args.train_file}, {vocab_size = args.vocab_size, special_tokens = {"<|endoftext|>"}})
local train_set = zt.data.text(args.train_file, tokenizer, {block_size = args.block_size})
local valid_set
if args.validation_file then
  valid_set = zt.data.text(args.validation_file, tokenizer, {block_size = args.block_size})
else
  valid_set, train_set = zt.data.split(train_set, args.validation_split_percentage / 100)
end
local model
local options = {gradient_checkpointing = args.gradient_checkpointing}
if args.model_name_or_path then
  model = zt.models.from_pretrained(args.model_name_or_path, options)
else
  local config = {model_type = "gpt2", n_layer = args.n_layer, n_embd = args.n_embd, n_head = args.n_head}
  local eos = tokenizer.eos_token_id
  options.config = {vocab_size = tokenizer.vocab_size, bos_token_id = eos, eos_token_id = eos}
  model = zt.models.from_config(args.config_name or config, options)
end

-- loaders, optimizer (biases and norms do not decay), schedule
local train = zt.data.loader(train_set, {batch_size = args.per_device_train_batch_size, shuffle = true})
local valid = zt.data.loader(valid_set, {batch_size = args.per_device_eval_batch_size})
local matrices, others = {params = {}}, {params = {}, weight_decay = 0}
for _, p in ipairs(model:parameters()) do table.insert(p:dim() > 1 and matrices.params or others.params, p) end
local opt = zt.optim.adamw({matrices, others}, {lr = args.learning_rate, weight_decay = args.weight_decay})
local steps = args.max_train_steps or acc:num_steps(train) * args.num_train_epochs
local sched = zt.schedule.get(args.lr_scheduler_type, opt,
  {num_warmup_steps = args.num_warmup_steps, num_training_steps = steps})
model, opt, train, valid, sched = acc:prepare(model, opt, train, valid, sched)

if args.resume_from_checkpoint then acc:load_state(args.resume_from_checkpoint) end
local checkpointing_steps = math.tointeger(tonumber(args.checkpointing_steps))
if args.checkpointing_steps and args.checkpointing_steps ~= "epoch" and not checkpointing_steps then
  error("--checkpointing_steps wants a number or 'epoch', not '" .. args.checkpointing_steps .. "'", 0)
end

local function evaluate()
  local loss, count = 0, 0
  model:eval()
  for batch in valid:iter() do
    zt.scope("evaluate", zt.no_grad, function()
      local out = model(batch)
      loss, count = loss + out.loss:item() * out.count, count + out.count
    end)
  end
  model:train()
  local sums = acc:reduce {loss, count}
  return sums[1] / sums[2]
end

local unigram = zt.data.unigram_loss(valid_set, train_set, tokenizer.vocab_size)
acc:print(("%d parameters, %d blocks of %d tokens to train on, %d held out, %d steps"):format(
  model:num_parameters(), #train_set, args.block_size, #valid_set, steps))
local progress, started = zt.progress(acc, {total_steps = steps, logging_steps = args.logging_steps}), zt.time()
model:train()
while acc.step < steps do
  local epoch = train.epoch
  for batch in train:iter() do
    acc:accumulate(function()
      local out = model(batch)
      acc:backward(out)
      acc:clip_grad_norm_(model:parameters(), args.max_grad_norm)
      progress:update {epoch = epoch, loss = out.loss:item(), tokens = out.count, lr = opt.groups[1].lr}
      opt:step(); sched:step(); opt:zero_grad()
    end)
    if acc.sync_gradients and checkpointing_steps and acc.step % checkpointing_steps == 0 then acc:save_state() end
    if acc.sync_gradients and acc.step >= steps then break end
  end
  if args.checkpointing_steps == "epoch" then acc:save_state(args.output_dir .. "/epoch_" .. epoch) end
  local loss = evaluate()
  local results = {epoch = epoch, eval_loss = loss, perplexity = math.exp(loss), unigram_perplexity = math.exp(unigram)}
  progress:print(("epoch %d: loss %.4f, perplexity %.2f on held-out text; a unigram model's is %.2f"):format(
    epoch, loss, results.perplexity, results.unigram_perplexity))
  acc:log(results)
  results.step, results.seconds = acc.step, zt.time() - started
  if acc.is_main_process then zt.json.save(args.output_dir .. "/all_results.json", results) end
end

acc:save_model(model, args.output_dir)
if acc.is_main_process then tokenizer:save_pretrained(args.output_dir) end
local prompt = valid_set[1].input_ids:narrow(1, 1, math.min(8, args.block_size - 1))
local length = math.min(prompt:size(1) + 60, model.config.n_positions)
acc:print(tokenizer:decode(model:generate(prompt, {max_length = length, do_sample = true})[1]))
