-- @include queue_position
-- How watched jobs stand, briefly. KEYS: none. ARGV: 1 queue prefix, then ids.
-- Returns per id {state, attempts, token, started, ended, place in the queue or 0 (of a scheduled job when it is due, in
-- us), progress, stages, of a scheduled job the error of its last try}, or 0 where unknown.
local answer = {}
for i = 2, #ARGV do
  local id = ARGV[i]
  local state, attempts, token, started, ended, model, step, ticket, said, stages, error =
    unpack(read(id, 's', 'a', 't', 'st', 'en', 'm', 'p', 'n', 'pg', 'sg', 'e'))
  if not state then
    answer[i - 1] = 0
  else
    local place = 0
    if state == 'q' and ticket and model then
      place = place_of(ARGV[1] .. model, step, ticket)
    elseif state == 'd' and model then
      place = due_of(ARGV[1] .. model, id)
    end
    answer[i - 1] = {state, attempts or '', token or '', started or '', ended or '', place, state == 'r' and said or '',
      state == 'r' and stages or '', state == 'd' and error or ''}
  end
end
return answer
